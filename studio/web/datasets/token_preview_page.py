"""Token preview: a row's tokens, in the experiment form and on the dataset's own page."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Annotated, Any, Literal, get_args

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import Engine
from sqlmodel import Session

from studio.db.session import read_session
from studio.errors import InvalidError, StudioError
from studio.protocols.tokenizer_service import (
    PackedRow,
    RejectedPreview,
    TemplatePreviews,
    TemplateSource,
    Token,
    TokenizerRequest,
    TokenPreview,
)
from studio.recipe.sections import ChatTemplateChoice
from studio.services.datasets import datasets, token_preview
from studio.services.datasets.token_preview import RowPosition
from studio.services.datasets.versions import Part
from studio.services.models import service_clients
from studio.settings import Settings
from studio.web.forms import choices
from studio.web.forms.recipe_form import nested_values
from studio.web.http.deps import Config, PostedForm
from studio.web.i18n import formatting
from studio.web.i18n.locale import gettext, ngettext
from studio.web.rendering.render import block, page, wants_fragment

router = APIRouter(include_in_schema=False)

DatasetId = Annotated[int, Path(ge=1, lt=2**63)]


_MAX_NAMED_ROWS = 12
"""How many rows of a shared pack are listed by number."""


class PreviewQuery(BaseModel):
    """Which row to show, for which model and settings, as form fields."""

    model_config = ConfigDict(frozen=True)

    model: str = Field(max_length=500)
    dataset: str = Field(max_length=500)
    version: int | None = Field(default=None, ge=1, lt=2**31)
    """Of the dataset; None is the version that new runs train on."""
    split: Part = "train"
    row: int = Field(default=1, ge=1, lt=2**53)
    step: Literal["", "back", "on", "random"] = ""
    """Which row to go to, relative to `row`."""
    max_length: int = Field(default=1024, ge=1, le=1_048_576)
    chat_template: TemplateSource = "model"
    method: str = Field(default="", max_length=100)
    """Of the form; without one, both answers of a pair are shown."""
    packing: bool = False
    validation_share: float = Field(default=0.05, gt=0, le=0.5)
    seed: int = Field(default=42, ge=0, lt=2**32)
    """Seed of the validation split; validation rows are not packed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpan:
    """Consecutive tokens that are trained on, truncated and different, or are not."""

    is_trained_on: bool
    is_truncated: bool
    starts_truncation: bool
    """Whether truncation starts right before it."""
    differs: bool
    """Whether the other answer of the pair lacks these tokens."""
    tokens: list[Token]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTurn:
    number: int
    """Its index in the conversation."""
    role: str
    spans: list[TokenSpan]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerColumn:
    """One of the two answers of a pair."""

    is_better: bool
    summary: str
    cut_at: int | None
    turns: list[TokenTurn]
    hidden: int
    """How many of its tokens are not shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPanel:
    place: RowPosition | None = None
    tokens: TokenPreview | None = None
    turns: list[TokenTurn] = field(default_factory=list)
    problem: StudioError | None = None
    template_choices: TemplatePreviews | None = None
    """Templates to choose from if the model has none."""

    @property
    def token_summary(self) -> str:
        """Summarise the row's tokens in one line: total, trained on, truncated."""
        assert self.tokens is not None  # noqa: S101 -- drawn only if there are tokens
        return _token_summary(self.tokens)

    @property
    def prompt(self) -> list[TokenTurn]:
        """Return the turns that are shown once: of a pair, those before the answers."""
        if self.tokens is None or self.tokens.rejected is None:
            return self.turns
        return [turn for turn in self.turns if turn.number < self.tokens.prompt_turns]

    @property
    def columns(self) -> list[AnswerColumn]:
        """Return both answers of a pair, the better one first; none for other rows."""
        if self.tokens is None or self.tokens.rejected is None:
            return []
        return [
            _answer_column(self.tokens, self.tokens.prompt_turns, is_better=True),
            _answer_column(self.tokens.rejected, self.tokens.prompt_turns, is_better=False),
        ]

    @property
    def packing_summary(self) -> str:
        """Summarise the row's pack in one line: which rows share it, and how full it is."""
        assert self.tokens is not None  # noqa: S101 -- drawn only if there are tokens
        assert self.place is not None  # noqa: S101 -- tokens have a row
        pack = self.tokens.pack
        if pack is None:
            return ""
        full = gettext("%(size)s of %(limit)s tokens") % {
            "size": formatting.number(pack.size),
            "limit": formatting.number(pack.limit),
        }
        other_rows = [
            packed_row.number for packed_row in pack.rows if packed_row.number != self.place.number
        ]
        if not other_rows:
            return gettext("Not packed with other rows: %(full)s.") % {"full": full}
        message = ngettext(
            "Packed with row %(rows)s: %(full)s.",
            "Packed with rows %(rows)s: %(full)s.",
            len(other_rows),
        )
        more = ["…"] if len(other_rows) > _MAX_NAMED_ROWS else []
        rows = ", ".join([*map(formatting.number, other_rows[:_MAX_NAMED_ROWS]), *more])
        return message % {"rows": rows, "full": full}

    @property
    def packed_before(self) -> list[PackedRow]:
        """Return the previous row of the pack, if there is one."""
        return self._around(lambda one, own: one < own)[-1:]

    @property
    def packed_after(self) -> list[PackedRow]:
        return self._around(lambda one, own: one > own)

    def _around(self, predicate: Callable[[int, int], bool]) -> list[PackedRow]:
        assert self.place is not None  # noqa: S101 -- only a row of a dataset is packed
        rows = self.tokens.pack.rows if self.tokens and self.tokens.pack else []
        return [
            packed_row for packed_row in rows if predicate(packed_row.number, self.place.number)
        ]


def load_preview(engine: Engine, settings: Settings, params: Mapping[str, Any]) -> TokenPanel:
    """Tokenize a row. No database lock is held while the tokenizer service works."""
    try:
        query = PreviewQuery.model_validate(params)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0]).replace("_", " ")
        return TokenPanel(
            problem=InvalidError(f"The {name} is not valid.", hint="Change it and try again.")
        )
    position: RowPosition | None = None
    try:
        with read_session(engine) as db:
            position = _find_row(db, query)
            row = token_preview.read_row(settings.datasets, position)
            tokenizer_request = token_preview.tokens_request(
                db,
                query.model,
                row,
                max_length=query.max_length,
                chat_template=query.chat_template,
                method=query.method,
            )
        if query.packing:
            validation_split = query.validation_share, query.seed
            tokenizer_request = token_preview.with_packing_window(
                tokenizer_request, settings.datasets, position, *validation_split
            )
        return _tokenize_row(settings, position, tokenizer_request)
    except StudioError as error:
        return TokenPanel(place=position, problem=error)


def _find_row(db: Session, query: PreviewQuery) -> RowPosition:
    dataset = datasets.require(db, query.dataset)
    if query.step == "random":
        return token_preview.random_row(db, dataset, query.split, query.version)
    steps = {"back": -1, "on": 1}.get(query.step, 0)
    return token_preview.nearest_row(db, dataset, query.split, query.row + steps, query.version)


def _tokenize_row(
    settings: Settings, position: RowPosition, tokenizer_request: TokenizerRequest
) -> TokenPanel:
    try:
        preview = service_clients.tokenize_row(settings, tokenizer_request)
    except InvalidError as error:
        if error.code not in {"no_chat_template", "chat_template_refused", "bad_row"}:
            raise
        return TokenPanel(
            place=position,
            problem=error,
            template_choices=_template_choices(settings, tokenizer_request),
        )
    return TokenPanel(place=position, tokens=preview, turns=_token_turns(preview))


_TEMPLATES = {"kind": "templates", "window": None}


def _template_choices(
    settings: Settings, tokenizer_request: TokenizerRequest
) -> TemplatePreviews | None:
    """Return previews of the templates that a recipe can choose; None if that fails, too."""
    try:
        previews = service_clients.render_templates(
            settings, tokenizer_request.model_copy(update=_TEMPLATES)
        )
    except StudioError:
        return None
    choices = [one for one in previews.choices if one.name in get_args(ChatTemplateChoice)]
    return previews.model_copy(update={"choices": choices})


def _token_summary(tokens: TokenPreview | RejectedPreview) -> str:
    total = ngettext("%(count)s token", "%(count)s tokens", tokens.total)
    return gettext("%(total)s · %(trained)s trained on · %(cut)s truncated") % {
        "total": total % {"count": formatting.number(tokens.total)},
        "trained": formatting.number(tokens.learnt),
        "cut": formatting.number(tokens.cut),
    }


def _answer_column(
    preview: TokenPreview | RejectedPreview, prompt_turns: int, *, is_better: bool
) -> AnswerColumn:
    return AnswerColumn(
        is_better=is_better,
        summary=_token_summary(preview),
        cut_at=preview.cut_at,
        turns=[turn for turn in _token_turns(preview) if turn.number >= prompt_turns],
        hidden=preview.total - len(preview.tokens),
    )


def _token_turns(preview: TokenPreview | RejectedPreview) -> list[TokenTurn]:
    turns: list[TokenTurn] = []
    was_cut = False
    for number, tokens in groupby(preview.tokens, key=lambda token: token.turn):
        spans: list[TokenSpan] = []
        for (learnt, cut, differs), span_tokens in groupby(
            tokens, key=lambda token: (token.learnt, token.cut, token.differs)
        ):
            begins_cut, was_cut = cut and not was_cut, cut
            spans.append(
                TokenSpan(
                    is_trained_on=learnt,
                    is_truncated=cut,
                    starts_truncation=begins_cut,
                    differs=differs,
                    tokens=list(span_tokens),
                )
            )
        role = preview.roles[number] if number < len(preview.roles) else "text"
        turns.append(TokenTurn(number=number, role=role, spans=spans))
    return turns


@router.post("/new/sight")
def preview_form_row(request: Request, posted: PostedForm, config: Config) -> Response:
    """Show a row of the form's dataset as its model will see it; nothing is saved."""
    params = _preview_query(posted)
    panel = load_preview(request.app.state.engine, config, params)
    return block(request, "experiments/new.html", "sight", sight=panel, stats_query=params)


@router.get("/datasets/{dataset_id}/sight")
def preview_dataset_row(
    request: Request,
    dataset_id: DatasetId,
    config: Config,
    model: Annotated[str, Query(max_length=500)] = "",
) -> Response:
    with read_session(request.app.state.engine) as db:
        dataset = datasets.get(db, dataset_id)
        model_names = choices.model_names(db)
        name, version = dataset.name, dataset.version
        base, reason = ("", "") if model else choices.default_base_model(db, name)
    values = {
        "max_length": "1024",
        "chat_template": "model",
        "split": "train",
        **request.query_params,
        "dataset": name,
        "model": model or base,
    }
    context: dict[str, Any] = {
        "dataset": {"id": dataset_id, "name": name, "version": version},
        "models": model_names,
        "why_model": reason,
        "values": values,
        "sight": load_preview(request.app.state.engine, config, values),
    }
    if wants_fragment(request):
        return block(request, "datasets/token_preview.html", "sight", **context)
    return page(request, "datasets/token_preview.html", **context)


def _preview_query(posted: Mapping[str, Any]) -> dict[str, Any]:
    """Read the preview's parameters from a posted recipe form."""
    data, preview_fields, optimisation = (
        nested_values(posted, name) for name in ("data", "look", "optimisation")
    )
    params = {
        "model": posted.get("base_model"),
        "dataset": posted.get("dataset"),
        "method": posted.get("method"),
        "row": preview_fields.get("row"),
        "step": preview_fields.get("step"),
        "max_length": data.get("max_length"),
        "chat_template": data.get("chat_template"),
        "packing": data.get("packing"),
        "validation_share": data.get("validation_share"),
        "seed": optimisation.get("seed"),
    }
    return {name: value for name, value in params.items() if value not in (None, "")}
