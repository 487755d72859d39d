"""The run table: the runs that match a query, sorted and paged."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from sqlalchemy import ColumnElement, and_, or_
from sqlmodel import Session, col, func, select

from studio.db.summaries import MetricSummary
from studio.db.tables import Run
from studio.errors import InvalidError
from studio.services.metrics import metric_summaries
from studio.services.search import query_fields, query_filters
from studio.services.search.query_fields import Field

DEFAULT_COLUMNS = (
    *("name", "status", "tag", "model", "dataset", "precision"),
    *("eval_loss", "loss.curve", "tokens_per_second", "duration", "created"),
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
    told = metric_summaries.list_keys(db)
    which = query_filters.build_conditions(view.query, told)
    wanted = resolve_order(view, told)
    ids = _sorted_ids(db, which, wanted, limit + 1, after)
    total = select(func.count(col(Run.id))).where(*which)
    shown = resolve_columns(view, told)
    return TablePage(
        lines=load_rows(db, ids[:limit], shown),
        columns=shown,
        has_more=len(ids) > limit,
        total=db.exec(total).one(),
    )


def find_runs(db: Session, view: TableView, *, limit: int, after: int | None = None) -> list[Run]:
    """Return the runs of a view that follow the run `after` in its order.

    Raises:
        QueryError: The query is not valid.

    """
    told = metric_summaries.list_keys(db)
    which = query_filters.build_conditions(view.query, told)
    ids = _sorted_ids(db, which, resolve_order(view, told), limit, after)
    return [line.run for line in load_rows(db, ids, ())]


def find_run_ids(db: Session, query: str) -> list[int]:
    """Return the ids of all runs that match a query.

    Raises:
        QueryError: The query is not valid.

    """
    which = query_filters.build_conditions(query, metric_summaries.list_keys(db))
    found = db.exec(select(Run.id).where(*which).order_by(col(Run.id)))
    return [one for one in found if one is not None]


def resolve_columns(view: TableView, told: Collection[str]) -> list[Field]:
    """Return the columns of a view, names first; skip unknown fields."""
    named = dict.fromkeys(("name", *view.columns[:MAX_COLUMNS]))
    return [one for name in named if (one := query_fields.find(name, told))]


def resolve_order(view: TableView, told: Collection[str]) -> SortOrder:
    """Return the order of a view.

    Raises:
        InvalidError: Runs cannot be sorted by its field.

    """
    name = view.sort.removeprefix("-") or NEWEST_FIRST.removeprefix("-")
    field = query_fields.find(name, told)
    if field is None or field.kind == "curve":
        near = get_close_matches(name, query_fields.list_names(told), n=1, cutoff=0.6)
        raise InvalidError(
            f"Runs cannot be sorted by {name}.",
            hint=f"Did you mean {near[0]}?" if near else "GET /api/v1/fields lists the fields.",
            param="sort",
        )
    return SortOrder(field=field, is_descending=view.sort.startswith("-"))


def load_rows(db: Session, run_ids: Sequence[int], shown: Sequence[Field]) -> list[TableRow]:
    """Return table rows for runs, in the order of these ids."""
    runs = {run.id: run for run in db.exec(select(Run).where(col(Run.id).in_(run_ids)))}
    sums = metric_summaries.load_by_run(db, run_ids, {one.key for one in shown})
    return [TableRow(run=runs[one], summaries=sums.get(one, {})) for one in run_ids if one in runs]


def _sorted_ids(
    db: Session,
    which: Sequence[ColumnElement[bool]],
    wanted: SortOrder,
    limit: int,
    after: int | None,
) -> list[int]:
    # Ids increase with creation time, and the primary key is an index.
    value = col(Run.id) if wanted.field.name == "created" else wanted.field.value
    query = select(Run.id).where(*which)
    if after is not None:
        query = query.where(_after_condition(db, value, wanted, after))
    sorted_by = value.desc() if wanted.is_descending else value.asc()
    tie = col(Run.id).desc() if wanted.is_descending else col(Run.id).asc()
    query = query.order_by(sorted_by.nulls_last(), tie).limit(limit)
    return [one for one in db.exec(query) if one is not None]


def _after_condition(db: Session, value: Any, wanted: SortOrder, after: int) -> ColumnElement[bool]:  # noqa: ANN401 -- a column of any type
    """Return the condition that a run follows another, by that run's current value."""
    mark = db.exec(select(value).where(Run.id == after)).first()
    later = col(Run.id) < after if wanted.is_descending else col(Run.id) > after
    if mark is None:
        return and_(value.is_(None), later)
    further = value < mark if wanted.is_descending else value > mark
    return or_(further, and_(value == mark, later), value.is_(None))
