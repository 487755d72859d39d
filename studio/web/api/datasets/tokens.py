"""REST routes that tokenize rows as training does: one row, or statistics of all."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import ConfigDict, Field
from sqlmodel import Session

from studio.db.session import read_session
from studio.db.tasks import Task
from studio.errors import NotFoundError
from studio.protocols.tokenizer_service import TemplateSource, TokenizerRequest, TokenPreview
from studio.services.datasets import datasets, token_preview, token_stats
from studio.services.datasets.versions import Part
from studio.services.models import service_clients
from studio.web.api.conventions import ApiRoute, Body, Id, Out
from studio.web.api.system.system import TaskOut, task_out
from studio.web.datasets import token_stats_page as shown
from studio.web.http.deps import DB, Config

router = APIRouter(
    route_class=ApiRoute, prefix="/api/v1/datasets/{dataset_id}/stats", tags=["datasets"]
)


preview_router = APIRouter(
    route_class=ApiRoute, prefix="/api/v1/datasets/{dataset_id}/preview", tags=["datasets"]
)


class PreviewSettings(Body):
    """The settings that determine how a row is tokenized."""

    # OpenAPI describes query parameters one by one.
    model_config = ConfigDict(use_attribute_docstrings=True)

    model: str = Field(min_length=1, max_length=500)
    """The base model, by the name that recipes use."""
    max_length: int = Field(default=1024, ge=1, le=1_048_576)
    chat_template: TemplateSource = "model"
    method: str = Field(default="", max_length=100)
    """The method that reads the row. Without one, both answers of a pair are returned, and answers
    that are rated bad."""


class PreviewQuery(PreviewSettings):
    model_config = ConfigDict(strict=False)  # Query parameters are text.

    row: int = Field(default=1, ge=1, lt=2**53)
    """Row number, starting at one."""
    split: Part = "train"
    version: int | None = Field(default=None, ge=1, lt=2**31)
    """Defaults to the version that new runs train on."""
    packing: bool = False
    """Whether to return the rows that are packed into the same example."""
    validation_share: float = Field(default=0.05, gt=0, le=0.5)
    """The recipe's validation share, for a dataset without a validation split. Validation rows are
    not packed."""
    seed: int = Field(default=42, ge=0, lt=2**32)
    """The seed that selects the validation rows."""


class PreviewRequest(PreviewSettings):
    """A row that is not saved yet."""

    row: dict[str, Any]
    """A conversation (`messages`), a text, a preference pair or a rated answer."""


@preview_router.get("")
def preview(
    request: Request, config: Config, dataset_id: Id, query: Annotated[PreviewQuery, Query()]
) -> TokenPreview:
    """Show a row as training sees it: its tokens, which are trained on, which are truncated."""
    with read_session(request.app.state.engine) as db:
        dataset = datasets.get(db, dataset_id)
        exact_row = token_preview.exact_row(db, dataset, query.split, query.row, query.version)
        tokenizer_request = _preview_request(
            db, query, token_preview.read_row(config.datasets, exact_row)
        )
    if query.packing:
        split_options = query.validation_share, query.seed
        tokenizer_request = token_preview.with_packing_window(
            tokenizer_request, config.datasets, exact_row, *split_options
        )
    return service_clients.tokenize_row(config, tokenizer_request)


@preview_router.post("")
def preview_unsaved(
    request: Request, config: Config, dataset_id: Id, query: PreviewRequest
) -> TokenPreview:
    """Show an unsaved row as training would see it."""
    with read_session(request.app.state.engine) as db:
        datasets.get(db, dataset_id)
        tokenizer_request = _preview_request(db, query, query.row)
    return service_clients.tokenize_row(config, tokenizer_request)


def _preview_request(
    db: Session, settings: PreviewSettings, row: dict[str, Any]
) -> TokenizerRequest:
    return token_preview.tokens_request(
        db,
        settings.model,
        row,
        max_length=settings.max_length,
        chat_template=settings.chat_template,
        method=settings.method,
    )


class TokenStatsRequest(shown.StatsQuery):
    model_config = ConfigDict(extra="forbid")


class TruncationOut(Out):
    """What truncation at a maximum sequence length removes."""

    at: int
    """The maximum length in tokens."""
    rows: int
    """Rows that are longer."""
    tokens: int
    """Truncated tokens."""
    learnt: int
    """Truncated tokens that would have been trained on."""
    emptied: int
    """Rows that lose every token that would have been trained on."""
    is_exact: bool
    """If false, the figures may be those of the next lower multiple of 1,024: there are more than
    10,000 distinct lengths and this one is above 8,192."""


class BarOut(Out):
    """Rows with `first` to `last` tokens."""

    first: int
    last: int
    rows: int
    cut: int


class RowLengthOut(Out):
    number: int
    tokens: int


class RoleOut(Out):
    tokens: int
    learnt: int


class RefusedRowsOut(Out):
    """Rows that the chat template rejects."""

    reason: str
    rows: int
    numbers: list[int]
    """The numbers of the first of these rows."""


class PartOut(Out):
    rows: int
    tokens: int
    learnt: int
    unlearnt: int
    """Rows without any token to train on, whatever the maximum length."""
    left_out: int
    """Rows whose answer was rated bad."""
    roles: dict[str, RoleOut]
    """By role; `text` for rows without messages, `template` for tokens of the chat template."""
    lengths: dict[str, int]
    """Shortest, median, mean, p95, p99 and longest, in tokens."""
    cut: TruncationOut
    histogram: list[BarOut]
    longest: list[RowLengthOut]
    shortest: list[RowLengthOut]
    refused: list[RefusedRowsOut]


class StatsOut(Out):
    sentence: str
    """The effect of truncation, in one sentence."""
    train: PartOut
    validation: PartOut | None
    """Null if each run holds out a share of the rows for validation."""


class TokenStatsAnswer(Out):
    """Either the statistics or the task that computes them."""

    stats: StatsOut | None = None
    chore: TaskOut | None = None
    """The task that counts tokens, or has failed to."""


@router.get("", responses={202: {"model": TokenStatsAnswer, "description": "Still counting."}})
def show(
    response: Response, dataset_id: Id, db: DB, query: Annotated[TokenStatsRequest, Query()]
) -> TokenStatsAnswer:
    """Return the token statistics: 202 while counting; 404 if counting was never requested."""
    task = token_stats.latest_task(
        db, shown.stats_selection(db, datasets.get(db, dataset_id), query)
    )
    if task is None:
        raise NotFoundError(
            "The tokens of this dataset have not been counted for this model and chat template.",
            hint="POST the same fields to this URL to count them.",
        )
    return _stats_response(response, task, query.max_length)


@router.post("", status_code=202)
def count(
    response: Response, dataset_id: Id, db: DB, config: Config, query: TokenStatsRequest
) -> TokenStatsAnswer:
    """Start a task that counts tokens; returns 200 with the statistics if already counted."""
    selection = shown.stats_selection(db, datasets.get(db, dataset_id), query)
    task = token_stats.enqueue(db, config, selection)
    return _stats_response(response, task, query.max_length)


def _stats_response(response: Response, task: Task, max_length: int) -> TokenStatsAnswer:
    stats = token_stats.parse_result(task)
    response.status_code = 200 if stats else 202
    if stats is None:
        return TokenStatsAnswer(chore=task_out(task))
    return TokenStatsAnswer(stats=_stats_out(shown.build_figures(stats, max_length)))


def _stats_out(figures: shown.StatsFigures) -> StatsOut:
    parts = {part.part: _part_out(part) for part in figures.parts}
    return StatsOut(
        sentence=figures.summary, train=parts["train"], validation=parts.get("validation")
    )


def _part_out(part: shown.PartView) -> PartOut:
    counts = part.counts
    return PartOut(
        rows=counts.rows,
        tokens=counts.tokens,
        learnt=counts.learnt,
        unlearnt=counts.unlearnt,
        left_out=counts.left_out,
        roles={
            name: RoleOut(tokens=tokens, learnt=counts.learnt_roles[name])
            for name, tokens in counts.roles.items()
        },
        lengths=dict(part.lengths),
        cut=TruncationOut.model_validate(part.truncation),
        histogram=[BarOut.model_validate(item) for item in part.bars],
        longest=[RowLengthOut.model_validate(item) for item in counts.longest],
        shortest=[RowLengthOut.model_validate(item) for item in counts.shortest],
        refused=[
            RefusedRowsOut(reason=reason, rows=rows.rows, numbers=rows.numbers)
            for reason, rows in counts.refused.items()
        ],
    )
