"""The table of runs on screen: its address, its heads and its cells."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import urlencode

from pydantic import BaseModel, Field

from studio.db.summaries import MetricSummary
from studio.services.search import query_fields
from studio.services.search.run_table import DEFAULT_COLUMNS, NEWEST_FIRST, TableRow, TableView
from studio.services.search.table_groups import GroupedRuns, GroupStats, RunGroup
from studio.web.i18n import formatting
from studio.web.i18n.locale import gettext
from studio.web.i18n.translation import translate
from studio.web.rendering.live_figures import FIGURES

AGGREGATE_SUFFIXES = {
    "last": "",
    "best": ", best",
    "min": ", least",
    "max": ", greatest",
    "smoothed": ", smoothed",
    "mean10": ", mean of last 10",
    "mean100": ", mean of last 100",
    "curve": ", curve",
}
"""What a form of a metric adds to its name."""

_SPARK_BLOCKS = "▁▂▃▄▅▆▇█"


class TableQuery(BaseModel):
    """What stands in the address of the page."""

    q: Annotated[str, Field(max_length=1000)] = ""
    sort: Annotated[str, Field(max_length=200)] = ""
    cols: list[Annotated[str, Field(max_length=2000)]] = []
    add: Annotated[str, Field(max_length=200)] = ""
    """A column more, as a form sends it."""
    group: Annotated[str, Field(max_length=200)] = ""
    base: int | None = None
    open: list[Annotated[str, Field(max_length=300)]] = []
    """Groups whose runs are shown, by the term that finds them."""
    after: int | None = None

    @property
    def to_view(self) -> TableView:
        named = [one.strip() for some in [*self.cols, self.add] for one in some.split(",")]
        chosen = tuple(dict.fromkeys(filter(None, named)))
        if self.add and not self.cols:
            chosen = tuple(dict.fromkeys((*DEFAULT_COLUMNS, *chosen)))
        return TableView(
            query=self.q.strip(),
            sort=self.sort or NEWEST_FIRST,
            columns=chosen or DEFAULT_COLUMNS,
            group=self.group.strip(),
            base=self.base,
        )


def table_url(view: TableView, path: str = "/", **more: Any) -> str:  # noqa: ANN401 -- whatever an address holds
    """Return where a view is shown: what it leaves as it is by default is not told."""
    told = {
        "q": view.query,
        "sort": "" if view.sort == NEWEST_FIRST else view.sort,
        "cols": "" if view.columns == DEFAULT_COLUMNS else ",".join(view.columns),
        "group": view.group,
        "base": view.base,
    }
    pairs = {name: one for name, one in (told | more).items() if one not in ("", None, [])}
    return path + ("?" + urlencode(pairs, doseq=True, safe=",:<>=./#") if pairs else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnHead:
    name: str
    title: str
    numeric: bool
    sort: str = ""
    """Where the table is sorted by this column; nothing for what cannot be sorted by."""
    sorted: str = ""
    """ascending, descending, or nothing."""
    left: str = ""
    """Where the column stands one further to the left."""
    without: str = ""
    """Where the column is left out; nothing for the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    field: query_fields.Field
    value: Any
    text: str
    delta: str = ""
    """The difference to the baseline, unjudged: whether it is better, the compare page finds out,
    which knows how far each run has come and how much it varies."""
    differs: bool = False
    """Whether it is a setting that is not as in the baseline."""

    @property
    def figure(self) -> str:
        """The name by which the event stream keeps the value up to date; nothing if it does not."""
        if self.field.key:
            return self.field.key if self.field.form == "last" else ""
        return self.field.name if self.field.name in FIGURES else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    run: Any
    cells: Sequence[Cell]


def column_heads(view: TableView, columns: Sequence[query_fields.Field]) -> list[ColumnHead]:
    return [_column_head(view, columns, place) for place in range(len(columns))]


def _column_head(view: TableView, columns: Sequence[query_fields.Field], place: int) -> ColumnHead:
    names, one = [column.name for column in columns], columns[place]
    falls = view.sort == f"-{one.name}"
    risen = view.sort == one.name
    # What a person looks for first: the smallest loss, the newest run, the first of the alphabet.
    first = (
        one.name
        if one.kind in {"words", "choice"} or query_fields.metric_direction(one.key) < 0
        else ""
    )
    following = one.name if falls else f"-{one.name}" if risen else first or f"-{one.name}"
    moved = [*names]
    if place > 1:
        moved[place - 1 : place + 1] = [names[place], names[place - 1]]
    rest = tuple(name for name in names if name != one.name)
    return ColumnHead(
        name=one.name,
        title=column_title(one),
        numeric=is_numeric(one),
        sort="" if one.kind in {"curve", "tags"} else table_url(replace(view, sort=following)),
        sorted="descending" if falls else "ascending" if risen else "",
        left=table_url(replace(view, columns=tuple(moved))) if place > 1 else "",
        without=table_url(replace(view, columns=rest)) if place else "",
    )


def table_row(line: TableRow, columns: Sequence[query_fields.Field], base: TableRow | None) -> Row:
    return Row(run=line.run, cells=[_cell(line, one, base) for one in columns])


def _cell(line: TableRow, field: query_fields.Field, base: TableRow | None) -> Cell:
    value = line.value(field)
    plain = Cell(field=field, value=value, text=format_value(field, value))
    if base is None or base.run.id == line.run.id or field.kind == "curve":
        return plain
    against = base.value(field)
    if not field.key:
        return replace(
            plain, differs=field.name in query_fields.setting_names() and value != against
        )
    if value is None or against is None or value == against:
        return plain
    return replace(plain, delta=formatting.change(value - against, field.key))


def column_title(field: query_fields.Field) -> str:
    """Return what a column is called."""
    if not field.key:
        return translate(field.title)
    return formatting.metric_title(field.key) + gettext(AGGREGATE_SUFFIXES[field.form])


def is_numeric(field: query_fields.Field) -> bool:
    return field.kind in {"number", "span", "moment"}


def format_value(field: query_fields.Field, value: Any) -> str:  # noqa: ANN401 -- as fields are
    """Write a value as the table shows it."""
    if value is None or value == "":
        return formatting.NO_VALUE
    if field.kind == "number" and field.key:
        return formatting.metric_value(value, field.key)
    return _FORMATTERS.get(field.kind, formatting.setting)(value)


def raw_value(value: Any) -> Any:  # noqa: ANN401 -- as JSON has it
    """Return a value for programs: numbers bare, moments as ISO writes them."""
    if isinstance(value, MetricSummary):
        return value.curve
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def format_spread(field: query_fields.Field, one: GroupStats | None) -> str:
    """Write a mean with its spread, as the table shows it."""
    if one is None:
        return formatting.NO_VALUE
    if field.kind == "span":
        return formatting.duration(one.mean)
    write = formatting.metric_value(one.mean, field.key)
    return (
        write
        if one.deviation is None
        else f"{write} ± {formatting.metric_value(one.deviation, field.key)}"
    )


def text_sparkline(curve: Sequence[float]) -> str:
    """Draw a curve with the blocks that any text can hold."""
    if not curve:
        return formatting.NO_VALUE
    low, high = min(curve), max(curve)
    scale = (len(_SPARK_BLOCKS) - 1) / (high - low) if high > low else 0
    step = max(1, len(curve) // 12)
    return "".join(_SPARK_BLOCKS[round((value - low) * scale)] for value in curve[::step])


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A group on screen, with its runs if it is open."""

    group: RunGroup
    title: str
    cells: Sequence[str]
    toggle: str
    alone: str
    """Where only its runs are found."""
    rows: Sequence[Row] | None


def group_rows(
    view: TableView, grouped: GroupedRuns, opened: Iterable[str], rows: Mapping[str, Sequence[Row]]
) -> list[GroupRow]:
    shown = [one for one in opened if one]
    return [
        GroupRow(
            group=one,
            title=format_value(grouped.field, one.value),
            cells=[
                format_spread(column, one.spreads.get(column.name)) if column.is_number else ""
                for column in grouped.columns[1:]
            ],
            toggle=table_url(view, open=_toggle_group(shown, one.term)),
            alone=table_url(replace(view, group="", query=f"{view.query} {one.term}".strip())),
            rows=rows.get(one.term),
        )
        for one in grouped.groups
    ]


def _toggle_group(opened: list[str], term: str) -> list[str]:
    return [one for one in opened if one != term] if term in opened else [*opened, term]


_FORMATTERS: Mapping[str, Callable[[Any], str]] = {
    "span": formatting.duration,
    "moment": lambda value: f"{value:%Y-%m-%d %H:%M}",
    "tags": lambda value: ", ".join(value) or formatting.NO_VALUE,
    "curve": lambda value: text_sparkline(value.curve),
}
