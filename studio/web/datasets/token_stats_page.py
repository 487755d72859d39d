"""The token statistics of a dataset: how long its rows are, and the rows one by one."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi import Path as PathParam
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlmodel import Session

from studio.db.tables import Dataset, DatasetVersion
from studio.db.tasks import Task
from studio.errors import ConflictError, InvalidError, StudioError
from studio.intake.quality import length_stats as counts
from studio.intake.quality.length_stats import HistogramBar, PartStats, TokenStats, Truncation
from studio.intake.rows.paging import NumberedRow, Page
from studio.methods import get_method, readers
from studio.protocols.tokenizer_service import TemplateSource
from studio.services.datasets import datasets, token_stats, versions
from studio.services.datasets.token_stats import StatsRequest
from studio.services.datasets.versions import Part, RowQuery
from studio.settings import Settings
from studio.web.forms import choices
from studio.web.http.deps import DB, Config, PostedForm
from studio.web.i18n import formatting
from studio.web.rendering.render import block, page, redirect, wants_fragment

router = APIRouter(prefix="/datasets/{dataset_id}/stats", include_in_schema=False)


Direction = Literal["", "first", "back", "on"]


class RowStep(BaseModel):
    """Which row to show, from the query string."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    split: Part = "train"
    row: int = Field(default=1, ge=1, lt=2**53)
    q: str = Field(default="", max_length=200)
    step: Direction = ""
    """Where to go from `row`: to the first match, or to the row before or after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowView:
    version: DatasetVersion
    part: Part
    search_text: str
    total: int
    """Number of rows in the part."""
    row_number: int
    """Number of the current row."""
    row: NumberedRow | None = None
    notice: str = ""
    continue_direction: Direction = ""
    """Direction to continue a search that ran out of time; empty if it did not."""


def parse_step(params: Mapping[str, Any]) -> RowStep:
    """Parse a query string; an invalid one means the first row."""
    try:
        return RowStep.model_validate(
            {name: value for name, value in params.items() if value != ""}
        )
    except ValidationError:
        return RowStep()


def find_row(folder: Path, version: DatasetVersion, params: RowStep) -> RowView:
    """Find the row that a step leads to."""
    total = version.train_rows if params.split == "train" else version.validation_rows
    row_number = min(params.row, max(1, total))
    view = RowView(
        version=version,
        part=params.split,
        search_text=params.q.strip(),
        total=total,
        row_number=row_number,
    )
    if not view.search_text:
        row_number = min(
            max(1, row_number + {"back": -1, "on": 1}.get(params.step, 0)), max(1, total)
        )
        return replace(view, row_number=row_number, row=_read_row(folder, view, row_number))
    page = _search_rows(folder, view, params.step)
    if page.rows:
        return replace(view, row_number=page.rows[0].number, row=page.rows[0])
    if page.searched_to is not None:
        return _unfinished_search(view, page.searched_to, params.step)
    if params.step in {"back", "on"}:
        notice = (
            f"No row before row {row_number:,} has “{view.search_text}”."
            if params.step == "back"
            else f"No row after row {row_number:,} has “{view.search_text}”."
        )
        return replace(view, row=_read_row(folder, view, row_number), notice=notice)
    notice = f"No row from row {row_number:,} onward has “{view.search_text}”."
    if params.step == "first" or row_number == 1:
        notice = f"No row has “{view.search_text}”."
    return replace(view, notice=notice)


def _unfinished_search(view: RowView, looked_to: int, step: Direction) -> RowView:
    further: Direction = "back" if step == "back" else "on"
    progress = f"back to row {looked_to:,}" if step == "back" else f"up to row {looked_to:,}"
    notice = f"No row with “{view.search_text}” {progress} so far."
    return replace(view, row_number=max(1, looked_to), notice=notice, continue_direction=further)


def _read_row(folder: Path, view: RowView, number: int) -> NumberedRow | None:
    row_query = RowQuery(part=view.part, numbers=frozenset({number}))
    return next(iter(versions.load_rows(folder, view.version, row_query).rows), None)


def _search_rows(folder: Path, view: RowView, step: Direction) -> Page:
    row_query = RowQuery(part=view.part, words=view.search_text)
    if step == "back":
        row_query = replace(row_query, before=view.row_number)
    else:
        row_query = replace(
            row_query, after={"first": 0, "on": view.row_number}.get(step, view.row_number - 1)
        )
    return versions.load_rows(folder, view.version, row_query, limit=1)


DatasetId = Annotated[int, PathParam(ge=1, lt=2**63)]


ROLE_TITLES = {
    "system": "System",
    "user": "User",
    "assistant": "Assistant",
    "tool": "Tool results",
    "text": "Text",
    "template": "Added by the template",
}


class StatsQuery(BaseModel):
    """What to count and where to truncate, from a query string or a form."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    version: int | None = Field(default=None, ge=1, lt=2**31)
    """Defaults to the version in use."""
    model: str = Field(min_length=1, max_length=500)
    """Name of the base model, as in a recipe."""
    chat_template: TemplateSource = "model"
    max_length: int = Field(default=1024, ge=1, le=counts.MAX_LENGTH)
    method: str = Field(default="", max_length=100)
    """The method that reads the rows: some read both answers of a pair, and answers that are rated
    bad. Without one, only better and good answers count."""

    @property
    def query(self) -> str:
        return urlencode(self.model_dump(exclude_none=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartView:
    """Figures of one part of a dataset."""

    part: str
    label: str
    counts: PartStats
    truncation: Truncation
    bars: list[HistogramBar]
    lengths: Mapping[str, int]
    """Shortest, median, mean and so on; empty without rows."""
    truncated_rows: list[int]
    """Numbers of the longest truncated rows."""

    @property
    def max_rows(self) -> int:
        """Rows in the tallest bar."""
        return max((bar.rows for bar in self.bars), default=0)

    @property
    def edges(self) -> list[str]:
        """Labels of the edges between bars: where each begins, and where the last one ends."""
        ends = [bar.first for bar in self.bars] + [bar.last for bar in self.bars[-1:]]
        return [formatting.number(length) for length in ends]

    @property
    def cells(self) -> list[list[int]]:
        """The bars as a table: shortest and longest in tokens, rows, and how many are truncated."""
        return [[bar.first, bar.last, bar.rows, bar.cut] for bar in self.bars]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsFigures:
    parts: list[PartView]
    truncation: Truncation
    """Truncation over all parts."""
    summary: str
    cut_position: float
    """Position of the truncation line, as a share of the width of all bars."""
    roles: Mapping[str, str]
    """Roles that have tokens, with their titles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsView:
    query: StatsQuery | None = None
    task: Task | None = None
    """The counting task, if it is unfinished or has failed."""
    figures: StatsFigures | None = None
    problem: StudioError | None = None


def load_stats(db: Session, dataset: Dataset, params: Mapping[str, Any]) -> StatsView:
    """Return the stored statistics, or the task that counts them; nothing is counted here."""
    try:
        query = parse_query(params)
        task = token_stats.latest_task(db, stats_selection(db, dataset, query))
    except StudioError as error:
        return StatsView(problem=error)
    stats = token_stats.parse_result(task) if task else None
    figures = build_figures(stats, query.max_length) if stats else None
    return StatsView(query=query, task=None if stats else task, figures=figures)


def parse_query(params: Mapping[str, Any]) -> StatsQuery:
    """Parse a query string or a form.

    Raises:
        InvalidError: a value is invalid.

    """
    try:
        return StatsQuery.model_validate(
            {name: value for name, value in params.items() if value != ""}
        )
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        label = {"max_length": "max sequence length"}.get(name, name.replace("_", " "))
        raise InvalidError(
            f"The {label} is not valid.",
            hint=f"Enter a number from 1 to {counts.MAX_LENGTH:,}." if name == "max_length" else "",
            param=name,
        ) from error


def stats_selection(db: Session, dataset: Dataset, query: StatsQuery) -> StatsRequest:
    """Return what to count.

    Raises:
        ConflictError: the dataset has no rows yet.
        InvalidError: the model does not exist.
        NotFoundError: the version or the method does not exist.

    """
    version = find_version(db, dataset, query.version)
    with_bad = bool(query.method) and get_method(query.method).reads_bad_answers
    return token_stats.build_request(
        db, version, query.model, query.chat_template, with_bad=with_bad
    )


def find_version(db: Session, dataset: Dataset, number: int | None) -> DatasetVersion:
    """Return a version by its number, or the one in use.

    Raises:
        ConflictError: the dataset has no rows yet.
        NotFoundError: the version does not exist.

    """
    number = number or dataset.version
    if number is None:
        raise ConflictError(f"{dataset.name} has no rows yet.", hint="Confirm its mapping first.")
    return versions.get(db, dataset.id or 0, number)


def build_figures(found: TokenStats, at: int) -> StatsFigures:
    parts = found.parts
    truncation, bars = (
        counts.measure_truncation(list(parts.values()), at),
        counts.build_bars(list(parts.values()), at),
    )
    return StatsFigures(
        parts=[
            _part_stats(name, part_stats, part_bars, at)
            for (name, part_stats), part_bars in zip(parts.items(), bars, strict=True)
        ],
        truncation=truncation,
        summary=token_stats.describe_truncation(truncation),
        cut_position=_cut_position(bars[0], at),
        roles={
            name: title
            for name, title in ROLE_TITLES.items()
            if any(part_stats.roles[name] for part_stats in parts.values())
        },
    )


def _part_stats(
    name: str, part_stats: PartStats, bars: list[HistogramBar], max_length: int
) -> PartView:
    return PartView(
        part=name,
        label=token_stats.PART_NAMES[name].capitalize(),
        counts=part_stats,
        truncation=counts.measure_truncation([part_stats], max_length),
        bars=bars,
        lengths=_length_summary(part_stats),
        truncated_rows=[row.number for row in part_stats.longest if row.tokens > max_length],
    )


def _length_summary(part_stats: PartStats) -> dict[str, int]:
    """Summarise the lengths in tokens: shortest, median, mean, percentiles, longest."""
    if not part_stats.rows:
        return {}
    return {
        "shortest": part_stats.shortest[0].tokens,
        "median": counts.length_quantile(part_stats, 0.5),
        "mean": round(part_stats.tokens / part_stats.rows),
        "p95": counts.length_quantile(part_stats, 0.95),
        "p99": counts.length_quantile(part_stats, 0.99),
        "longest": part_stats.longest[0].tokens,
    }


def _cut_position(bars: list[HistogramBar], max_length: int) -> float:
    """Return where the truncation line lies among bars of equal width, as a share of them."""
    for number, bar in enumerate(bars):
        if max_length <= bar.last:
            share = max(0, max_length - bar.first + 1) / (bar.last - bar.first + 1)
            return (number + share) / len(bars)
    return 1.0


@router.get("")
def show(request: Request, dataset_id: DatasetId, db: DB, config: Config) -> Response:
    """Show the statistics, or a form that queues them. Another max length needs no recount."""
    context = _page_context(db, config, datasets.get(db, dataset_id), request)
    if not wants_fragment(request):
        return page(request, "datasets/token_stats.html", **context)
    response = block(request, "datasets/token_stats.html", "stats", **context)
    response.headers["HX-Replace-Url"] = f"{request.url.path}?{urlencode(context['values'])}"
    return response


@router.get("/counted")
def after_count(request: Request, dataset_id: DatasetId) -> Response:
    """Redirect to the statistics once their task has ended."""
    return redirect(request, f"/datasets/{dataset_id}/stats?{request.url.query}")


@router.post("")
def count_tokens(
    request: Request, dataset_id: DatasetId, posted: PostedForm, db: DB, config: Config
) -> Response:
    query = parse_query(posted)
    token_stats.enqueue(db, config, stats_selection(db, datasets.get(db, dataset_id), query))
    return redirect(request, f"/datasets/{dataset_id}/stats?{query.query}")


def _usual_method(db: Session, dataset: Dataset) -> dict[str, str]:
    """Return the method that both answers of pairs are for; nothing for other rows."""
    version = versions.current(db, dataset)
    is_pairs = version is not None and version.kind == "preference"
    return {"method": readers("preference")[0].name} if is_pairs else {}


def _page_context(
    db: Session, config: Settings, dataset: Dataset, request: Request
) -> dict[str, Any]:
    model_names = choices.model_names(db)
    values = {
        "version": str(dataset.version or ""),
        "model": "",
        "max_length": "1024",
        "chat_template": "model",
        **_usual_method(db, dataset),
        **request.query_params,
    }
    base, reason = ("", "") if values["model"] else choices.default_base_model(db, dataset.name)
    values["model"] = values["model"] or base
    view = load_stats(db, dataset, values)
    number = view.query.version if view.query else None
    row = find_row(config.datasets, find_version(db, dataset, number), parse_step(values))
    values |= {"split": row.part, "row": str(row.row_number), "q": row.search_text}
    values.pop("step", None)
    return {
        "dataset": dataset,
        "models": model_names,
        "why_model": reason,
        "values": values,
        "shown": view,
        "leaf": row,
    }
