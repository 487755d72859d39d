"""The table of runs: those that a query finds, in an order of one's choice, page after page."""

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

COLUMNS = (
    *("name", "status", "tag", "model", "dataset", "precision"),
    *("eval_loss", "loss.curve", "tokens_per_second", "duration", "created"),
)
"""What is shown unless somebody chooses."""

NEWEST = "-created"
MOST_COLUMNS = 40
MOST_EXPORTED = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Which runs, how, and in what order. All of it stands in the address."""

    query: str = ""
    sort: str = NEWEST
    """A field's name; with a minus before it, the greatest comes first."""
    columns: tuple[str, ...] = COLUMNS
    group: str = ""
    base: int | None = None
    """The run that the others are measured against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A run with what it told, summed up."""

    run: Run
    sums: dict[str, MetricSummary]

    def value(self, field: Field) -> Any:  # noqa: ANN401 -- as fields are
        return field.read(self.run, self.sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    lines: Sequence[Line]
    columns: Sequence[Field]
    has_more: bool
    total: int
    """How many runs the query finds, on all pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    field: Field
    falls: bool


def page(db: Session, view: View, *, limit: int, after: int | None = None) -> Page:
    """Return the runs of a view that come after run `after` in its order.

    Raises:
        QueryError: the query cannot be understood.

    """
    told = metric_summaries.keys(db)
    which = query_filters.conditions(view.query, told)
    wanted = order(view, told)
    ids = _ids(db, which, wanted, limit + 1, after)
    total = select(func.count(col(Run.id))).where(*which)
    shown = columns(view, told)
    return Page(
        lines=lines(db, ids[:limit], shown),
        columns=shown,
        has_more=len(ids) > limit,
        total=db.exec(total).one(),
    )


def found(db: Session, view: View, *, limit: int, after: int | None = None) -> list[Run]:
    """Return the runs of a view that come after run `after` in its order.

    Raises:
        QueryError: the query cannot be understood.

    """
    told = metric_summaries.keys(db)
    which = query_filters.conditions(view.query, told)
    ids = _ids(db, which, order(view, told), limit, after)
    return [line.run for line in lines(db, ids, ())]


def matching(db: Session, query: str) -> list[int]:
    """Return the numbers of all runs that a query finds.

    Raises:
        QueryError: the query cannot be understood.

    """
    which = query_filters.conditions(query, metric_summaries.keys(db))
    found = db.exec(select(Run.id).where(*which).order_by(col(Run.id)))
    return [one for one in found if one is not None]


def columns(view: View, told: Collection[str]) -> list[Field]:
    """Return the columns of a view, names first; what no field is called is passed over."""
    named = dict.fromkeys(("name", *view.columns[:MOST_COLUMNS]))
    return [one for name in named if (one := query_fields.find(name, told))]


def order(view: View, told: Collection[str]) -> Order:
    """Return the order of a view.

    Raises:
        InvalidError: runs cannot be sorted by what it names.

    """
    name = view.sort.removeprefix("-") or NEWEST.removeprefix("-")
    field = query_fields.find(name, told)
    if field is None or field.kind == "curve":
        near = get_close_matches(name, query_fields.names(told), n=1, cutoff=0.6)
        raise InvalidError(
            f"Runs cannot be sorted by {name}.",
            hint=f"Did you mean {near[0]}?" if near else "GET /api/v1/fields lists what they can.",
            param="sort",
        )
    return Order(field=field, falls=view.sort.startswith("-"))


def lines(db: Session, run_ids: Sequence[int], shown: Sequence[Field]) -> list[Line]:
    """Return runs as lines of a table of some columns, in the order of their ids here."""
    runs = {run.id: run for run in db.exec(select(Run).where(col(Run.id).in_(run_ids)))}
    sums = metric_summaries.of(db, run_ids, {one.key for one in shown})
    return [Line(run=runs[one], sums=sums.get(one, {})) for one in run_ids if one in runs]


def _ids(
    db: Session,
    which: Sequence[ColumnElement[bool]],
    wanted: Order,
    limit: int,
    after: int | None,
) -> list[int]:
    # Runs are numbered as they are made, and their numbers are an index.
    value = col(Run.id) if wanted.field.name == "created" else wanted.field.value
    query = select(Run.id).where(*which)
    if after is not None:
        query = query.where(_beyond(db, value, wanted, after))
    sorted_by = value.desc() if wanted.falls else value.asc()
    tie = col(Run.id).desc() if wanted.falls else col(Run.id).asc()
    query = query.order_by(sorted_by.nulls_last(), tie).limit(limit)
    return [one for one in db.exec(query) if one is not None]


def _beyond(db: Session, value: Any, wanted: Order, after: int) -> ColumnElement[bool]:  # noqa: ANN401 -- a column of any type
    """Say of a run that it comes after another, wherever that stands by now."""
    mark = db.exec(select(value).where(Run.id == after)).first()
    later = col(Run.id) < after if wanted.falls else col(Run.id) > after
    if mark is None:
        return and_(value.is_(None), later)
    further = value < mark if wanted.falls else value > mark
    return or_(further, and_(value == mark, later), value.is_(None))
