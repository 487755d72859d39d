"""Group the runs of the table by a field: counts, means and standard deviations."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement
from sqlmodel import Session, func, select

from studio.db.tables import Run
from studio.services.metrics import metric_summaries
from studio.services.search import query_fields, query_filters, run_table
from studio.services.search.query_fields import Field
from studio.services.search.run_table import TableView

MAX_GROUPS = 200
"""Limits the size of the response."""

GROUPABLE_KINDS = frozenset({"words", "choice", "number", "flag"})
"""Kinds of fields that runs can be grouped by."""


@dataclass(frozen=True, slots=True)
class GroupStats:
    n: int
    mean: float
    deviation: float | None
    """Sample standard deviation; None for a single value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGroup:
    value: Any
    """The common value of its runs; None if they have none."""
    count: int
    spreads: dict[str, GroupStats]
    """Statistics of numeric columns, by column name."""
    term: str
    """The query term that finds its runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedRuns:
    field: Field
    columns: Sequence[Field]
    groups: Sequence[RunGroup]
    total: int


def group_runs(db: Session, view: TableView) -> GroupedRuns | None:
    """Group the runs of a view; None if it is not grouped, or its field cannot group.

    Raises:
        QueryError: The query is not valid.

    """
    told = metric_summaries.list_keys(db)
    field = query_fields.find(view.group, told)
    if field is None or field.kind not in GROUPABLE_KINDS:
        return None
    columns = run_table.resolve_columns(view, told)
    which = query_filters.build_conditions(view.query, told)
    found = _load_groups(db, field, [one for one in columns if one.is_number], which)
    return GroupedRuns(
        field=field,
        columns=columns,
        groups=_sort_groups(found, run_table.resolve_order(view, told)),
        total=sum(one.count for one in found),
    )


def _load_groups(
    db: Session,
    field: Field,
    numbers: Sequence[Field],
    which: Sequence[ColumnElement[bool]],
) -> list[RunGroup]:
    named: Any = [one.value.label(f"c{i}") for i, one in enumerate(numbers)]
    # OFFSET keeps databases from repeating each value's subquery for every sum.
    each = select(field.value.label("common"), *named).select_from(Run).where(*which)
    each = each.offset(0).subquery()
    parts = [each.c[f"c{i}"] for i in range(len(numbers))]
    # Sum squared differences from the mean: squares of large numbers lose all precision.
    near = db.execute(select(func.count(), *map(func.avg, parts)).select_from(each)).one()[1:]
    sums: list[Any] = []
    for part, middle in zip(parts, near, strict=True):
        off = part - (middle or 0.0)
        sums += [func.count(part), func.sum(off), func.sum(off * off)]
    query = select(each.c.common, func.count(), *sums).group_by(each.c.common)
    rows = db.execute(query.order_by(func.count().desc()).limit(MAX_GROUPS))
    return [_run_group(field, numbers, near, row) for row in rows]


def _run_group(
    field: Field, numbers: Sequence[Field], near: Sequence[Any], row: Sequence[Any]
) -> RunGroup:
    common, count, *sums = row
    spreads = {}
    for i, (one, middle) in enumerate(zip(numbers, near, strict=True)):
        n, total, squares = sums[3 * i : 3 * i + 3]
        if n:
            spreads[one.name] = _to_stats(n, middle, total, squares)
    return RunGroup(
        value=common, count=count, spreads=spreads, term=query_filters.group_term(field, common)
    )


def _to_stats(n: int, middle: float, total: float, squares: float) -> GroupStats:
    off = total / n
    if n == 1:
        return GroupStats(n, middle + off, None)
    return GroupStats(n, middle + off, math.sqrt(max(0.0, (squares - n * off * off) / (n - 1))))


def _sort_groups(found: Sequence[RunGroup], order: run_table.SortOrder) -> list[RunGroup]:
    """Sort by the mean of the column the view is sorted by; otherwise, largest group first."""
    name = order.field.name
    known = [one for one in found if name in one.spreads]
    if not known:
        return list(found)
    known.sort(key=lambda one: one.spreads[name].mean, reverse=order.is_descending)
    return [*known, *(one for one in found if name not in one.spreads)]
