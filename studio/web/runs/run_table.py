"""The run table: its URL, column heads and cells."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import urlencode

from pydantic import BaseModel, Field

from studio.db.states import LIVE, RunStatus
from studio.db.summaries import MetricSummary
from studio.services.search import query_fields
from studio.services.search.run_table import (
    DEFAULT_COLUMNS,
    NEWEST_FIRST,
    GroupedRuns,
    GroupStats,
    RunGroup,
    TableRow,
    TableView,
)
from studio.web.i18n import formatting
from studio.web.i18n.locale import gettext
from studio.web.i18n.translation import translate
from studio.web.rendering.live_figures import FIGURES

AGGREGATE_SUFFIXES = {
    "last": "",
    "best": ", best",
    "min": ", min",
    "max": ", max",
    "smoothed": ", smoothed",
    "mean10": ", mean of last 10",
    "mean100": ", mean of last 100",
    "curve": ", curve",
}
"""What an aggregate of a metric adds to its title."""

CANCELLED = f"status:{RunStatus.CANCELLED}"
WITHOUT_CANCELLED = f"-{CANCELLED}"
LIVE_RUNS, QUEUED_RUNS = f"status:{','.join(sorted(LIVE))}", f"status:{RunStatus.QUEUED}"

MAX_LIVE, MAX_QUEUED = 20, 50
"""How many live and queued runs pages show at most; a link leads to the others."""

_SPARK_BLOCKS = "▁▂▃▄▅▆▇█"


class TableQuery(BaseModel):
    """The query parameters of the run table."""

    q: Annotated[str, Field(max_length=1000)] = ""
    sort: Annotated[str, Field(max_length=200)] = ""
    cols: list[Annotated[str, Field(max_length=2000)]] = []
    add: Annotated[str, Field(max_length=200)] = ""
    """One more column, as a form posts it."""
    group: Annotated[str, Field(max_length=200)] = ""
    base: int | None = None
    open: list[Annotated[str, Field(max_length=300)]] = []
    """Expanded groups, each by the query term that finds its runs."""
    after: int | None = None

    @property
    def to_view(self) -> TableView:
        names = [name.strip() for text in [*self.cols, self.add] for name in text.split(",")]
        chosen = tuple(dict.fromkeys(filter(None, names)))
        if self.add and not self.cols:
            chosen = tuple(dict.fromkeys((*DEFAULT_COLUMNS, *chosen)))
        return TableView(
            query=self.q.strip(),
            sort=self.sort or NEWEST_FIRST,
            columns=chosen or DEFAULT_COLUMNS,
            group=self.group.strip(),
            base=self.base,
        )


def effective_query(query: str) -> str:
    """Return the query that a table applies: without one, it leaves cancelled runs out."""
    return query or WITHOUT_CANCELLED


def table_url(view: TableView, path: str = "/", **more: Any) -> str:  # noqa: ANN401 -- any query value
    """Return the URL of a view, without values that are at their defaults."""
    params = {
        "q": view.query,
        "sort": "" if view.sort == NEWEST_FIRST else view.sort,
        "cols": "" if view.columns == DEFAULT_COLUMNS else ",".join(view.columns),
        "group": view.group,
        "base": view.base,
    }
    pairs = {name: value for name, value in (params | more).items() if value not in ("", None, [])}
    return path + ("?" + urlencode(pairs, doseq=True, safe=",:<>=./#") if pairs else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnHead:
    name: str
    title: str
    numeric: bool
    sort_url: str = ""
    """URL that sorts by this column; empty if it cannot be sorted."""
    sort_direction: str = ""
    """`ascending`, `descending` or empty."""
    move_left_url: str = ""
    """URL that moves the column one place to the left."""
    remove_url: str = ""
    """URL that hides the column; empty for the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    field: query_fields.Field
    value: Any
    text: str
    delta: str = ""
    """Difference to the baseline, without a verdict: only the compare page knows how far each run
    got and how much its results vary."""
    differs: bool = False
    """Whether it is a setting that differs from the baseline."""

    @property
    def live_figure(self) -> str:
        """The name under which the event stream updates the value; empty if it does not."""
        if self.field.key:
            return self.field.key if self.field.form == "last" else ""
        return self.field.name if self.field.name in FIGURES else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    run: Any
    cells: Sequence[Cell]


def column_heads(view: TableView, columns: Sequence[query_fields.Field]) -> list[ColumnHead]:
    return [_column_head(view, columns, index) for index in range(len(columns))]


def _column_head(view: TableView, columns: Sequence[query_fields.Field], index: int) -> ColumnHead:
    names, field = [column.name for column in columns], columns[index]
    is_descending = view.sort == f"-{field.name}"
    is_ascending = view.sort == field.name
    # Start with what users look for: the lowest loss, the newest run, alphabetical order.
    first_sort = (
        field.name
        if field.kind in {"words", "choice"} or query_fields.metric_direction(field.key) < 0
        else ""
    )
    next_sort = (
        field.name
        if is_descending
        else f"-{field.name}"
        if is_ascending
        else first_sort or f"-{field.name}"
    )
    reordered = [*names]
    if index > 1:
        reordered[index - 1 : index + 1] = [names[index], names[index - 1]]
    other_names = tuple(name for name in names if name != field.name)
    return ColumnHead(
        name=field.name,
        title=column_title(field),
        numeric=is_numeric(field),
        sort_url=""
        if field.kind in {"curve", "tags"}
        else table_url(replace(view, sort=next_sort)),
        sort_direction="descending" if is_descending else "ascending" if is_ascending else "",
        move_left_url=table_url(replace(view, columns=tuple(reordered))) if index > 1 else "",
        remove_url=table_url(replace(view, columns=other_names)) if index else "",
    )


def table_row(line: TableRow, columns: Sequence[query_fields.Field], base: TableRow | None) -> Row:
    return Row(run=line.run, cells=[_cell(line, column, base) for column in columns])


def _cell(line: TableRow, field: query_fields.Field, base: TableRow | None) -> Cell:
    value = line.value(field)
    cell = Cell(field=field, value=value, text=format_value(field, value))
    if base is None or base.run.id == line.run.id or field.kind == "curve":
        return cell
    baseline_value = base.value(field)
    if not field.key:
        return replace(
            cell, differs=field.name in query_fields.setting_names() and value != baseline_value
        )
    if value is None or baseline_value is None or value == baseline_value:
        return cell
    return replace(cell, delta=formatting.change(value - baseline_value, field.key))


def column_title(field: query_fields.Field) -> str:
    """Return the title of a column."""
    if not field.key:
        return translate(field.title)
    return formatting.metric_title(field.key) + gettext(AGGREGATE_SUFFIXES[field.form])


def is_numeric(field: query_fields.Field) -> bool:
    return field.kind in {"number", "span", "moment"}


def format_value(field: query_fields.Field, value: Any) -> str:  # noqa: ANN401 -- any field's value
    """Format a value for the table."""
    if value is None or value == "":
        return formatting.NO_VALUE
    if field.kind == "number" and field.key:
        return formatting.metric_value(value, field.key)
    return _FORMATTERS.get(field.kind, formatting.setting)(value)


def raw_value(value: Any) -> Any:  # noqa: ANN401 -- any JSON value
    """Return a value for programs: bare numbers, ISO 8601 times."""
    if isinstance(value, MetricSummary):
        return value.curve
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def format_spread(field: query_fields.Field, one: GroupStats | None) -> str:
    """Format a mean with its spread for the table."""
    if one is None:
        return formatting.NO_VALUE
    if field.kind == "span":
        return formatting.duration(one.mean)
    mean_text = formatting.metric_value(one.mean, field.key)
    return (
        mean_text
        if one.deviation is None
        else f"{mean_text} ± {formatting.metric_value(one.deviation, field.key)}"
    )


def text_sparkline(curve: Sequence[float]) -> str:
    """Draw a curve with Unicode block characters."""
    if not curve:
        return formatting.NO_VALUE
    low, high = min(curve), max(curve)
    scale = (len(_SPARK_BLOCKS) - 1) / (high - low) if high > low else 0
    step = max(1, len(curve) // 12)
    return "".join(_SPARK_BLOCKS[round((value - low) * scale)] for value in curve[::step])


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A group of runs, with the runs if it is expanded."""

    group: RunGroup
    title: str
    cells: Sequence[str]
    toggle_url: str
    filter_url: str
    """URL of the table with only its runs."""
    rows: Sequence[Row] | None


def group_rows(
    view: TableView, grouped: GroupedRuns, opened: Iterable[str], rows: Mapping[str, Sequence[Row]]
) -> list[GroupRow]:
    expanded = [item for item in opened if item]
    return [
        GroupRow(
            group=item,
            title=format_value(grouped.field, item.value),
            cells=[
                format_spread(column, item.spreads.get(column.name)) if column.is_number else ""
                for column in grouped.columns[1:]
            ],
            toggle_url=table_url(view, open=_toggle_group(expanded, item.term)),
            filter_url=table_url(
                replace(view, group="", query=f"{effective_query(view.query)} {item.term}")
            ),
            rows=rows.get(item.term),
        )
        for item in grouped.groups
    ]


def _toggle_group(opened: list[str], term: str) -> list[str]:
    return [other for other in opened if other != term] if term in opened else [*opened, term]


_FORMATTERS: Mapping[str, Callable[[Any], str]] = {
    "span": formatting.duration,
    "moment": lambda value: f"{value:%Y-%m-%d %H:%M}",
    "tags": lambda value: ", ".join(value) or formatting.NO_VALUE,
    "curve": lambda value: text_sparkline(value.curve),
}
