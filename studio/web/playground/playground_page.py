"""The playground: one to four models answer the same prompts side by side."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Len
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel
from sqlmodel import Session

from studio.db.session import read_session
from studio.db.tables import Run
from studio.errors import StudioError
from studio.services.chat import slot_wait, suggested_prompts
from studio.services.chat.chat_models import ChatModel
from studio.services.chat.suggested_prompts import SuggestedPrompt
from studio.services.playground import endpoints, model_choices, number_formats
from studio.services.playground.model_choices import ModelChoice, ModelReference, parse_reference
from studio.services.playground.number_formats import FormatChoice
from studio.services.workers import workers
from studio.settings import Settings
from studio.web.chat.answer_stream import Question, answer_events, to_server_events
from studio.web.chat.prompt_requests import PromptRequest, ScoredAnswer
from studio.web.chat.token_scores import GivenToken, show_given_scores, show_scores
from studio.web.http.api_access import ApiAccess, access_for
from studio.web.http.deps import DB, Config
from studio.web.http.event_hub import StreamSlot
from studio.web.playground import address, endpoint_stream
from studio.web.playground.address import MAX_COLUMNS, Address, Column, PageOptions
from studio.web.playground.code_snippets import QuestionCode
from studio.web.rendering.render import block, page

router = APIRouter(prefix="/playground", include_in_schema=False)

ModelName = Annotated[str, Query(alias="model", max_length=80)]
FormatName = Annotated[str, Query(alias="format", max_length=40)]
Key = Annotated[str, Query(pattern=r"^c[0-9]{1,6}$")]
Search = Annotated[str, Query(max_length=200)]
ModelNames = Annotated[list[str] | None, Query(alias="model", max_length=MAX_COLUMNS)]


ENDPOINT_KEY = "OPENAI_API_KEY"
"""The environment variable that holds the key in code that asks an endpoint."""

MAX_GIVEN_TOKENS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnView:
    """A column as the page shows it."""

    key: str
    """Distinguishes it from the other columns of the page, also after one has been removed."""
    number: int
    choice: ModelChoice
    model: ChatModel | None
    """None if it cannot answer, and of an endpoint."""
    formats: Sequence[FormatChoice] = ()
    format: str = ""
    own: PageOptions | None = None
    sees: bool = False
    """Whether it may read images."""


@dataclass(frozen=True, slots=True)
class PromptGroup:
    """The validation rows that some runs share."""

    runs: list[Run]
    prompts: list[SuggestedPrompt]


class ColumnModel(BaseModel):
    """The model of a column."""

    model: Annotated[str, Len(1, 80)]
    format: Annotated[str, Len(0, 40)] = ""


class PlaygroundQuestion(PromptRequest, ColumnModel):
    """What the model of a column is asked."""


class PlaygroundScore(ScoredAnswer, ColumnModel):
    """An answer that the model of a column scores."""

    tokens: Annotated[list[GivenToken], Len(0, MAX_GIVEN_TOKENS)] = []
    """What an endpoint gave with its answer: it scores no other."""


@router.get("")
def show(request: Request, db: DB, config: Config) -> Response:
    opened = address.parse(request.query_params.multi_items())
    columns = opened.columns or _default_columns(db, config)
    views = [
        _view_column(db, config, column, f"c{number}", number)
        for number, column in enumerate(columns, 1)
    ]
    references = [column.reference for column in columns]
    return page(
        request,
        "playground/show.html",
        columns=views,
        opened=opened,
        is_text=_is_text(db, opened, references),
        groups=_list_prompts(db, config, references),
        wait=slot_wait.find_wait(db),
        most=MAX_COLUMNS,
        max_address=address.MAX_ADDRESS_CHARS,
        max_kept=address.MAX_KEPT_CHARS,
    )


@router.get("/models")
def list_models(request: Request, db: DB, config: Config, q: Search = "") -> Response:
    """List the models that a column may have, by name or number of a run."""
    return block(
        request,
        "playground/parts.html",
        "models",
        base_models=model_choices.list_base_models(db, q.strip()),
        runs=model_choices.list_runs(db, config.runs, q.strip()),
        most=model_choices.MAX_LISTED,
        **_list_endpoints(db, config, q.strip()),
    )


def _list_endpoints(db: Session, config: Settings, search: str) -> dict[str, Any]:
    """Return the endpoints by name, or why there are none."""
    try:
        found = endpoints.list_endpoints(db, config)
    except StudioError as error:
        return {"endpoints": [], "endpoint_problem": error}
    named = [one for one in found if search.lower() in f"{one.name} {one.model}".lower()]
    choices = [model_choices.describe_endpoint(one) for one in named]
    return {"endpoints": choices, "endpoint_problem": None}


@router.get("/column")
def show_column(
    request: Request,
    db: DB,
    config: Config,
    name: ModelName,
    key: Key,
    format_name: FormatName = "",
) -> Response:
    column = Column(parse_reference(name), format_name)
    view = _view_column(db, config, column, key, int(key[1:]))
    return block(request, "playground/parts.html", "column", column=view)


@router.get("/prompts")
def show_prompts(request: Request, db: DB, config: Config, names: ModelNames = None) -> Response:
    """Show validation rows of the runs that trained these models."""
    references = [parse_reference(name) for name in names or []]
    groups = _list_prompts(db, config, references)
    return block(request, "playground/parts.html", "prompts", groups=groups)


@router.get("/wait")
def wait_block(request: Request, db: DB) -> Response:
    """Show what answers wait for; empty once a model could answer."""
    return block(request, "playground/show.html", "wait", wait=slot_wait.find_wait(db))


@router.post("/answers", response_class=EventSourceResponse, dependencies=[StreamSlot])
async def answer(request: Request, asked: PlaygroundQuestion) -> AsyncIterator[ServerSentEvent]:
    """Stream the answer of a column's model; a disconnect stops it."""
    async for event in to_server_events(_answer_events(request, asked)):
        yield event


async def _answer_events(
    request: Request, asked: PlaygroundQuestion
) -> AsyncGenerator[dict[str, Any]]:
    reference = parse_reference(asked.model)
    events = (
        endpoint_stream.answer_events(request, asked, reference.name)
        if reference.kind == "endpoint"
        else answer_events(request, _question(request, asked))
    )
    async with aclosing(events):
        async for event in events:
            yield event


@router.post("/scores")
async def score(request: Request, asked: PlaygroundScore) -> Response:
    """Show how likely the model of a column finds the tokens of an answer."""
    if parse_reference(asked.model).kind == "endpoint":
        return show_given_scores(request, asked.tokens)
    return await show_scores(request, _question(request, asked), asked)


def _question(request: Request, asked: PlaygroundQuestion | PlaygroundScore) -> Question:
    def find_model(db: Session) -> ChatModel:
        return _find_model(db, request.app.state.settings, asked.model, asked.format)

    return Question(asked, find_model)


@router.post("/code")
def show_code(request: Request, config: Config, asked: PlaygroundQuestion) -> Response:
    """Show a question as code that asks the same through the API."""
    code, model, error = None, None, None
    try:
        with read_session(request.app.state.engine) as db:
            reference = parse_reference(asked.model)
            if reference.kind == "endpoint":
                endpoint = endpoints.get(db, config, reference.name)
                body = endpoint_stream.to_body(endpoint, asked)
                code = QuestionCode(ApiAccess(endpoint.url, ENDPOINT_KEY), endpoint.url, body)
            else:
                model = _find_model(db, config, asked.model, asked.format)
                access = access_for(config, str(request.base_url))
                code = QuestionCode(access, f"{access.root}/v1", asked.to_api(model.name))
    except StudioError as problem:
        error = problem
    return block(request, "playground/parts.html", "code", code=code, model=model, error=error)


def _find_model(db: Session, config: Settings, name: str, format_name: str) -> ChatModel:
    model = model_choices.get_model(db, config.runs, parse_reference(name))
    return number_formats.with_format(model, format_name, workers.training_hardware(db))


def _default_columns(db: Session, config: Settings) -> list[Column]:
    return [Column(reference) for reference in model_choices.suggest(db, config.runs)]


def _view_column(
    db: Session, config: Settings, column: Column, key: str, number: int
) -> ColumnView:
    reference, hardware = column.reference, workers.training_hardware(db)
    choice = _describe(db, config, reference)
    shown: dict[str, Any] = {"key": key, "number": number, "own": column.own}
    if choice.host:
        return ColumnView(choice=choice, model=None, sees=True, **shown)
    if choice.reason:
        return ColumnView(choice=choice, model=None, **shown)
    own = model_choices.get_model(db, config.runs, reference)
    formats = number_formats.list_formats(own, hardware)
    try:
        model = number_formats.with_format(own, column.format, hardware)
    except StudioError as error:
        choice = model_choices.with_reason(choice, error)
        return ColumnView(choice=choice, model=None, formats=formats, **shown)
    chosen = column.format if column.format in {row.name for row in formats} else ""
    sees = own.served.sees_images
    return ColumnView(
        choice=choice, model=model, formats=formats, format=chosen, sees=sees, **shown
    )


def _describe(db: Session, config: Settings, reference: ModelReference) -> ModelChoice:
    """Return how a column is shown, also if its model cannot answer."""
    if reference.kind != "endpoint":
        return model_choices.describe(db, config.runs, reference)
    try:
        return model_choices.describe_endpoint(endpoints.get(db, config, reference.name))
    except StudioError as error:
        return model_choices.with_reason(
            ModelChoice(reference=reference, name=reference.name), error
        )


def _is_text(db: Session, opened: Address, references: Sequence[ModelReference]) -> bool:
    """Whether models continue texts: as the address says, else as the first run was trained."""
    if opened.mode:
        return opened.mode == "text"
    runs = (model_choices.find_run(db, reference) for reference in references)
    first = next((run for run in runs if run), None)
    return first is not None and suggested_prompts.trains_on_text(db, first)


def _list_prompts(
    db: Session, config: Settings, references: Sequence[ModelReference]
) -> list[PromptGroup]:
    """Return validation rows of the runs; runs with the same ones are one group."""
    groups: list[PromptGroup] = []
    found = (model_choices.find_run(db, reference) for reference in references)
    for run in {run.id: run for run in found if run}.values():
        prompts = suggested_prompts.list_prompts(db, run, config.datasets)
        same = next((group for group in groups if group.prompts == prompts), None)
        if same:
            same.runs.append(run)
        elif prompts:
            groups.append(PromptGroup([run], prompts))
    return groups
