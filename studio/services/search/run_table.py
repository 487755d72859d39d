"""The run table: the runs that match a query, sorted and paged or grouped, and its saved views."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from sqlalchemy import ColumnElement, and_, or_
from sqlalchemy.orm import defer
from sqlmodel import Session, col, func, select

from studio.db.summaries import MetricSummary, SavedView
from studio.db.tables import Run
from studio.errors import InvalidError, NotFoundError
from studio.methods import DEFAULT_OBJECTIVE
from studio.services import experiments
from studio.services.metrics import metric_summaries
from studio.services.search import query_fields, query_filters
from studio.services.search.query_fields import Field

QUERY_LIMIT = 4000


def save_view(db: Session, name: str, query: str) -> SavedView:
    """Save a view under a name; replace an existing one.

    Raises:
        InvalidError: The name is not valid.

    """
    name = experiments.clean_name(name)
    existing = db.exec(select(SavedView).where(SavedView.name == name)).first()
    view = existing or SavedView(name=name, query=query)
    view.query = query[:QUERY_LIMIT].removeprefix("?")
    db.add(view)
    db.flush()
    return view


def get(db: Session, view_id: int) -> SavedView:
    view = db.get(SavedView, view_id)
    if view is None:
        raise NotFoundError(f"View {view_id} does not exist.", hint="It may have been deleted.")
    return view


def list_views(db: Session) -> Sequence[SavedView]:
    return db.exec(select(SavedView).order_by(col(SavedView.name))).all()


def delete_view(db: Session, view_id: int) -> None:
    db.delete(get(db, view_id))


DEFAULT_COLUMNS = (
    *("name", "status", "tag", "model", "dataset", "precision"),
    DEFAULT_OBJECTIVE,
    *("loss.curve", "tokens_per_second", "duration", "created"),
)
"""Columns shown by default."""

NEWEST_FIRST = "-created"
MAX_COLUMNS = 40
MAX_EXPORTED = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    """Which runs to show, which columns, and the order; the URL holds all of it."""

    query: str = ""
    sort: str = NEWEST_FIRST
    """A field's name; a leading minus sorts in descending order."""
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    group: str = ""
    base: int | None = None
    """The run that others are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A run and the summaries of its metrics."""

    run: Run
    summaries: dict[str, MetricSummary]

    def value(self, field: Field) -> Any:  # noqa: ANN401 -- any value of a field
        return field.read(self.run, self.summaries)


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePage:
    lines: Sequence[TableRow]
    columns: Sequence[Field]
    has_more: bool
    total: int
    """Number of runs that match the query, on all pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SortOrder:
    field: Field
    is_descending: bool


def load_page(db: Session, view: TableView, *, limit: int, after: int | None = None) -> TablePage:
    """Return the runs of a view that follow the run `after` in its order.

    Raises:
        QueryError: The query is not valid.

    """
    metric_keys = metric_summaries.list_keys(db)
    conditions = query_filters.build_conditions(view.query, metric_keys)
    order = resolve_order(view, metric_keys)
    ids = _sorted_ids(db, conditions, order, limit + 1, after)
    total = select(func.count(col(Run.id))).where(*conditions)
    columns = resolve_columns(view, metric_keys)
    return TablePage(
        lines=load_rows(db, ids[:limit], columns),
        columns=columns,
        has_more=len(ids) > limit,
        total=db.exec(total).one(),
    )


def find_runs(db: Session, view: TableView, *, limit: int, after: int | None = None) -> list[Run]:
    """Return the runs of a view that follow the run `after` in its order.

    Raises:
        QueryError: The query is not valid.

    """
    metric_keys = metric_summaries.list_keys(db)
    conditions = query_filters.build_conditions(view.query, metric_keys)
    ids = _sorted_ids(db, conditions, resolve_order(view, metric_keys), limit, after)
    found = {run.id: run for run in db.exec(select(Run).where(col(Run.id).in_(ids)))}
    return [found[run_id] for run_id in ids if run_id in found]


def find_sorted_ids(db: Session, view: TableView, *, limit: int) -> list[int]:
    """Return the ids of the runs of a view, in its order.

    Raises:
        QueryError: The query is not valid.

    """
    metric_keys = metric_summaries.list_keys(db)
    conditions = query_filters.build_conditions(view.query, metric_keys)
    return _sorted_ids(db, conditions, resolve_order(view, metric_keys), limit, None)


def count_runs(db: Session, query: str) -> int:
    """Return how many runs match a query.

    Raises:
        QueryError: The query is not valid.

    """
    conditions = query_filters.build_conditions(query, metric_summaries.list_keys(db))
    return db.exec(select(func.count(col(Run.id))).where(*conditions)).one()


def find_run_ids(db: Session, query: str) -> list[int]:
    """Return the ids of all runs that match a query.

    Raises:
        QueryError: The query is not valid.

    """
    conditions = query_filters.build_conditions(query, metric_summaries.list_keys(db))
    run_ids = db.exec(select(Run.id).where(*conditions).order_by(col(Run.id)))
    return [run_id for run_id in run_ids if run_id is not None]


def resolve_columns(view: TableView, metric_keys: Collection[str]) -> list[Field]:
    """Return the columns of a view, names first; skip unknown fields."""
    names = dict.fromkeys(("name", *view.columns[:MAX_COLUMNS]))
    return [field for name in names if (field := query_fields.find(name, metric_keys))]


def resolve_order(view: TableView, metric_keys: Collection[str]) -> SortOrder:
    """Return the order of a view.

    Raises:
        InvalidError: Runs cannot be sorted by its field.

    """
    name = view.sort.removeprefix("-") or NEWEST_FIRST.removeprefix("-")
    field = query_fields.find(name, metric_keys)
    if field is None or field.kind == "curve":
        suggestions = get_close_matches(name, query_fields.list_names(metric_keys), n=1, cutoff=0.6)
        raise InvalidError(
            f"Runs cannot be sorted by {name}.",
            hint=f"Did you mean {suggestions[0]}?"
            if suggestions
            else "GET /api/v1/fields lists the fields.",
            param="sort",
        )
    return SortOrder(field=field, is_descending=view.sort.startswith("-"))


_WIDE: tuple[Any, ...] = (Run.resolved, Run.estimate)
_WITHOUT_WIDE = tuple(map(defer, _WIDE))
"""No column of the table shows them; they are read on access."""


def load_rows(db: Session, run_ids: Sequence[int], columns: Sequence[Field]) -> list[TableRow]:
    """Return table rows for runs, in the order of these ids."""
    query = select(Run).where(col(Run.id).in_(run_ids)).options(*_WITHOUT_WIDE)
    runs = {run.id: run for run in db.exec(query)}
    summaries = metric_summaries.load_by_run(db, run_ids, {one.key for one in columns})
    return [
        TableRow(run=runs[one], summaries=summaries.get(one, {})) for one in run_ids if one in runs
    ]


def _sorted_ids(
    db: Session,
    conditions: Sequence[ColumnElement[bool]],
    order: SortOrder,
    limit: int,
    after: int | None,
) -> list[int]:
    # Ids increase with creation time, and the primary key is an index.
    value = col(Run.id) if order.field.name == "created" else order.field.value
    query = select(Run.id).where(*conditions)
    if after is not None:
        query = query.where(_after_condition(db, value, order, after))
    sorted_by = value.desc() if order.is_descending else value.asc()
    tie = col(Run.id).desc() if order.is_descending else col(Run.id).asc()
    query = query.order_by(sorted_by.nulls_last(), tie).limit(limit)
    return [run_id for run_id in db.exec(query) if run_id is not None]


def _after_condition(db: Session, value: Any, order: SortOrder, after: int) -> ColumnElement[bool]:  # noqa: ANN401 -- a column of any type
    """Return the condition that a run follows another, by that run's current value."""
    cursor_value = db.exec(select(value).where(Run.id == after)).first()
    later = col(Run.id) < after if order.is_descending else col(Run.id) > after
    if cursor_value is None:
        return and_(value.is_(None), later)
    further = value < cursor_value if order.is_descending else value > cursor_value
    return or_(further, and_(value == cursor_value, later), value.is_(None))


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
    columns = resolve_columns(view, metric_keys)
    conditions = query_filters.build_conditions(view.query, metric_keys)
    groups = _load_groups(db, field, [one for one in columns if one.is_number], conditions)
    return GroupedRuns(
        field=field,
        columns=columns,
        groups=_sort_groups(groups, resolve_order(view, metric_keys)),
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


def _sort_groups(groups: Sequence[RunGroup], order: SortOrder) -> list[RunGroup]:
    """Sort by the mean of the column the view is sorted by; otherwise, largest group first."""
    name = order.field.name
    with_value = [group for group in groups if name in group.spreads]
    if not with_value:
        return list(groups)
    with_value.sort(key=lambda one: one.spreads[name].mean, reverse=order.is_descending)
    return [*with_value, *(group for group in groups if name not in group.spreads)]
