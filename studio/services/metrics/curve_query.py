"""Query curve points from the database: as logged, or aggregated into buckets of an axis.

A spike survives in a bucket's minimum or maximum. Buckets are ranges of steps, which are indexed:
all other axes increase with the steps, and each curve's buckets are merged into common ones.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from sqlalchemy import ColumnElement, literal
from sqlalchemy.orm import aliased
from sqlmodel import Session, col, func, select

from studio.db.tables import Metric

CurveKey = tuple[int, str]
"""A curve's run id and metric key."""

CurvePoint = Any
"""Run, metric, place, mean, minimum, maximum, and whether a value there was not finite."""

Offsets = Mapping[int, float]
"""What to add to the places of a run."""

Resolution = tuple[int, tuple[float, float]]
"""Number of buckets, and the range; infinities for the whole axis."""

_Placed = tuple[float, float | None, float | None, float | None, bool]
"""A point without its run and metric."""

_PLACES = {
    "step": col(Metric.step),
    "epoch": col(Metric.epoch),
    "tokens": col(Metric.tokens),
    "seconds": col(Metric.seconds),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisRange:
    """A range of an axis, and how each run's places map to it."""

    low: float = -math.inf
    high: float = math.inf
    place: Any
    """The column of the axis."""
    offsets: Offsets

    def conditions_for(self, pair: CurveKey) -> tuple[ColumnElement[bool], ...]:
        """Return the conditions that a metric row is of a curve and inside the range."""
        offset = self.offsets.get(pair[0], 0)
        ends = ((self.place.__ge__, self.low), (self.place.__le__, self.high))
        inside = (holds(end - offset) for holds, end in ends if math.isfinite(end))
        return (*_is_of_curve(pair), *inside)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Equal parts of an axis."""

    low: float
    width: float
    count: int

    def middle(self, number: int) -> float:
        return self.low + (number + 0.5) * self.width

    def number(self, place: float) -> int:
        return math.floor((place - self.low) / self.width)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveExtent:
    """Where a curve begins and ends, and whether it has more points than can be shown."""

    low: float
    high: float
    first: int
    last: int
    """Last step; `first` is a step, too."""
    is_crowded: bool


def load_along_axis(
    db: Session, pairs: Sequence[CurveKey], column: str, offsets: Offsets, shown: Resolution
) -> tuple[Sequence[CurvePoint], bool]:
    """Return the points of curves along a column, and whether they were aggregated."""
    buckets, (first, last) = shown
    part = AxisRange(low=first, high=last, place=_PLACES[column], offsets=offsets)
    extents = {
        pair: extent for pair in pairs if (extent := _measure_extent(db, pair, part, buckets))
    }
    if not extents:
        return (), False
    low = min(one.low + offsets.get(run, 0) for (run, _key), one in extents.items())
    high = max(one.high + offsets.get(run, 0) for (run, _key), one in extents.items())
    if high <= low or not any(one.is_crowded for one in extents.values()):
        return _load_each(db, list(extents), part), False
    cut = Buckets(low=low, width=(high - low) / buckets, count=buckets)
    if column == "step" and not offsets:
        return [row for pair in extents for row in _load_step_buckets(db, pair, part, cut)], True
    made = [
        (*pair, *spot)
        for pair, extent in extents.items()
        for spot in _merge_buckets(
            _load_own_buckets(db, pair, extent, part, buckets), offsets.get(pair[0], 0), cut
        )
    ]
    return made, True


def load_against_metric(
    db: Session, run_ids: Sequence[int], wanted: Sequence[str], metric: str, shown: Resolution
) -> tuple[Sequence[CurvePoint], bool]:
    """Return the points of curves against another metric, joined by step."""
    buckets, (least, most) = shown
    other = aliased(Metric)
    joined = (
        col(Metric.run_id).in_(run_ids),
        col(Metric.key).in_(wanted),
        col(other.run_id) == col(Metric.run_id),
        col(other.step) == col(Metric.step),
        col(other.key) == metric,
        col(other.value).is_not(None),
        col(other.value) >= least,
        col(other.value) <= most,
    )
    ends = select(func.min(other.value), func.max(other.value), func.count(col(Metric.id)))
    first, last, count = db.exec(ends.where(*joined)).one()
    low, high = first or 0.0, last or 0.0
    crowded = high > low and count > buckets * len(run_ids) * len(wanted)
    value: Any = other.value
    width = (high - low) / buckets
    spot = low + (func.floor((value - low) / width) + 0.5) * width if crowded else value
    return _load_grouped(db, spot, joined), crowded


def first_non_finite(db: Session, pairs: Sequence[CurveKey]) -> dict[CurveKey, int]:
    """Return the first step of each curve whose value was not finite."""
    first = select(func.min(Metric.step)).where(col(Metric.value).is_(None))
    found = {pair: db.exec(first.where(*_is_of_curve(pair))).one() for pair in pairs}
    return {pair: step for pair, step in found.items() if step is not None}


def curve_keys(run_ids: Sequence[int], wanted: Sequence[str]) -> list[CurveKey]:
    return list(product(dict.fromkeys(run_ids), dict.fromkeys(wanted)))


def _measure_extent(
    db: Session, pair: CurveKey, part: AxisRange, buckets: int
) -> CurveExtent | None:
    """Measure a curve without reading it: every axis increases with the steps."""
    of_pair = part.conditions_for(pair)
    ends = (col(Metric.step), col(Metric.step).desc())
    parts = [
        select(what).where(*of_pair).order_by(end).limit(1)
        for what in (part.place, col(Metric.step))
        for end in ends
    ]
    more = select(Metric.step).where(*of_pair).order_by(col(Metric.step)).offset(buckets).limit(1)
    asked: Any = [part.scalar_subquery() for part in (*parts, more)]
    low, high, first, last, beyond = db.exec(select(*asked)).one()
    if low is None:
        return None
    return CurveExtent(low=low, high=high, first=first, last=last, is_crowded=beyond is not None)


def _load_each(db: Session, pairs: Sequence[CurveKey], part: AxisRange) -> list[CurvePoint]:
    """Return curves with each point as logged."""
    rows = (
        row for pair in pairs for row in _load_grouped(db, part.place, part.conditions_for(pair))
    )
    return [(row[0], row[1], row[2] + part.offsets.get(row[0], 0), *row[3:]) for row in rows]


def _load_grouped(
    db: Session,
    spot: Any,  # noqa: ANN401 -- a column or a sum, of any type
    chosen: Sequence[ColumnElement[bool]],
) -> Sequence[CurvePoint]:
    columns: Any = (
        Metric.run_id,
        Metric.key,
        spot.label("spot"),
        func.avg(Metric.value),
        func.min(Metric.value),
        func.max(Metric.value),
        func.max(func.length(Metric.non_finite)) > 0,
    )
    query = select(*columns).where(*chosen)
    found: Sequence[CurvePoint] = db.exec(
        query.group_by(col(Metric.run_id), col(Metric.key), "spot").order_by("spot")
    ).all()
    return found


def _load_step_buckets(
    db: Session, pair: CurveKey, part: AxisRange, cut: Buckets
) -> Iterator[CurvePoint]:
    """Yield one curve in buckets of its steps.

    Each bucket uses the index: a third of the work of sorting all points.
    """
    broken = select(Metric.step).where(*part.conditions_for(pair), col(Metric.value).is_(None))
    bad = {cut.number(step) for step in db.exec(broken)}
    for number, *values in _query_buckets(db, part.conditions_for(pair), cut, ()):
        if values[0] is not None or number in bad:
            yield (*pair, cut.middle(number), *values, number in bad)


def _load_own_buckets(
    db: Session, pair: CurveKey, extent: CurveExtent, part: AxisRange, buckets: int
) -> Iterator[_Placed]:
    """Yield one curve in buckets of its own steps, with the place of their middle on the axis."""
    place = part.place
    broken = select(place).where(*part.conditions_for(pair), col(Metric.value).is_(None))
    yield from ((spot, None, None, None, True) for spot in db.exec(broken))
    if not extent.is_crowded:
        told = select(place, Metric.value).where(
            *part.conditions_for(pair), col(Metric.value).is_not(None)
        )
        yield from ((spot, value, value, value, False) for spot, value in db.exec(told))
        return
    cut = Buckets(low=extent.first, width=(extent.last - extent.first) / buckets, count=buckets)
    ends = (col(Metric.step), col(Metric.step).desc())
    for _number, mean, least, greatest, first, last in _query_buckets(
        db, part.conditions_for(pair), cut, [select(place).order_by(end).limit(1) for end in ends]
    ):
        if mean is not None:
            yield (first + last) / 2, mean, least, greatest, False


def _query_buckets(
    db: Session, of_pair: Sequence[Any], cut: Buckets, besides: Sequence[Any]
) -> Iterator[Any]:
    """Query mean, minimum and maximum of each bucket, and further columns."""
    bucket = select(literal(0).label("number")).cte("bucket", recursive=True)
    following = select(bucket.c.number + 1).where(bucket.c.number < cut.count)
    bucket = bucket.union_all(following)
    first, beyond = (cut.low + (bucket.c.number + i) * cut.width for i in (0, 1))
    inside = (*of_pair, col(Metric.step) >= first, col(Metric.step) < beyond)
    told: list[Any] = [select(how(Metric.value)) for how in (func.avg, func.min, func.max)]
    parts = [one.where(*inside).scalar_subquery() for one in (*told, *besides)]
    yield from db.exec(select(bucket.c.number, *parts))


def _merge_buckets(spots: Iterator[_Placed], offset: float, cut: Buckets) -> Iterator[_Placed]:
    """Merge the buckets of one curve into those that all curves share."""
    together: dict[int, list[_Placed]] = defaultdict(list)
    for spot in spots:
        together[cut.number(spot[0] + offset)].append(spot)
    for number, inside in sorted(together.items()):
        means = [one[1] for one in inside if one[1] is not None]
        yield (
            cut.middle(number),
            math.fsum(means) / len(means) if means else None,
            min((one[2] for one in inside if one[2] is not None), default=None),
            max((one[3] for one in inside if one[3] is not None), default=None),
            any(one[4] for one in inside),
        )


def _is_of_curve(pair: CurveKey) -> tuple[ColumnElement[bool], ...]:
    run_id, key = pair
    return col(Metric.run_id) == run_id, col(Metric.key) == key
