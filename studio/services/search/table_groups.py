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
    metric_keys = metric_summaries.list_keys(db)
    field = query_fields.find(view.group, metric_keys)
    if field is None or field.kind not in GROUPABLE_KINDS:
        return None
    columns = run_table.resolve_columns(view, metric_keys)
    conditions = query_filters.build_conditions(view.query, metric_keys)
    groups = _load_groups(db, field, [one for one in columns if one.is_number], conditions)
    return GroupedRuns(
        field=field,
        columns=columns,
        groups=_sort_groups(groups, run_table.resolve_order(view, metric_keys)),
        total=sum(one.count for one in groups),
    )


def _load_groups(
    db: Session,
    field: Field,
    numbers: Sequence[Field],
    conditions: Sequence[ColumnElement[bool]],
) -> list[RunGroup]:
    labelled: Any = [number_field.value.label(f"c{i}") for i, number_field in enumerate(numbers)]
    # OFFSET keeps databases from repeating each value's subquery for every sum.
    per_run = select(field.value.label("common"), *labelled).select_from(Run).where(*conditions)
    per_run = per_run.offset(0).subquery()
    parts = [per_run.c[f"c{i}"] for i in range(len(numbers))]
    # Sum squared differences from the mean: squares of large numbers lose all precision.
    averages = db.execute(select(func.count(), *map(func.avg, parts)).select_from(per_run)).one()[
        1:
    ]
    aggregates: list[Any] = []
    for part, average in zip(parts, averages, strict=True):
        deviation = part - (average or 0.0)
        aggregates += [func.count(part), func.sum(deviation), func.sum(deviation * deviation)]
    query = select(per_run.c.common, func.count(), *aggregates).group_by(per_run.c.common)
    rows = db.execute(query.order_by(func.count().desc()).limit(MAX_GROUPS))
    return [_run_group(field, numbers, averages, row) for row in rows]


def _run_group(
    field: Field, numbers: Sequence[Field], averages: Sequence[Any], row: Sequence[Any]
) -> RunGroup:
    common, count, *aggregates = row
    spreads = {}
    for i, (number_field, average) in enumerate(zip(numbers, averages, strict=True)):
        n, total, squares = aggregates[3 * i : 3 * i + 3]
        if n:
            spreads[number_field.name] = _to_stats(n, average, total, squares)
    return RunGroup(
        value=common, count=count, spreads=spreads, term=query_filters.group_term(field, common)
    )


def _to_stats(n: int, average: float, total: float, squares: float) -> GroupStats:
    mean_deviation = total / n
    if n == 1:
        return GroupStats(n, average + mean_deviation, None)
    return GroupStats(
        n,
        average + mean_deviation,
        math.sqrt(max(0.0, (squares - n * mean_deviation * mean_deviation) / (n - 1))),
    )


def _sort_groups(groups: Sequence[RunGroup], order: run_table.SortOrder) -> list[RunGroup]:
    """Sort by the mean of the column the view is sorted by; otherwise, largest group first."""
    name = order.field.name
    with_value = [group for group in groups if name in group.spreads]
    if not with_value:
        return list(groups)
    with_value.sort(key=lambda one: one.spreads[name].mean, reverse=order.is_descending)
    return [*with_value, *(group for group in groups if name not in group.spreads)]
