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
    db: Session, pairs: Sequence[CurveKey], column: str, offsets: Offsets, resolution: Resolution
) -> tuple[Sequence[CurvePoint], bool]:
    """Return the points of curves along a column, and whether they were aggregated."""
    buckets, (first, last) = resolution
    axis_range = AxisRange(low=first, high=last, place=_PLACES[column], offsets=offsets)
    extents = {
        pair: extent for pair in pairs if (extent := _measure_extent(db, pair, axis_range, buckets))
    }
    if not extents:
        return (), False
    low = min(
        curve_extent.low + offsets.get(run, 0) for (run, _key), curve_extent in extents.items()
    )
    high = max(
        curve_extent.high + offsets.get(run, 0) for (run, _key), curve_extent in extents.items()
    )
    if high <= low or not any(curve_extent.is_crowded for curve_extent in extents.values()):
        return _load_each(db, list(extents), axis_range), False
    shared_buckets = Buckets(low=low, width=(high - low) / buckets, count=buckets)
    if column == "step" and not offsets:
        return [
            row
            for pair in extents
            for row in _load_step_buckets(db, pair, axis_range, shared_buckets)
        ], True
    points = [
        (*pair, *point)
        for pair, extent in extents.items()
        for point in _merge_buckets(
            _load_own_buckets(db, pair, extent, axis_range, buckets),
            offsets.get(pair[0], 0),
            shared_buckets,
        )
    ]
    return points, True


def load_against_metric(
    db: Session, run_ids: Sequence[int], keys: Sequence[str], metric: str, resolution: Resolution
) -> tuple[Sequence[CurvePoint], bool]:
    """Return the points of curves against another metric, joined by step."""
    buckets, (least, most) = resolution
    axis_metric = aliased(Metric)
    joined = (
        col(Metric.run_id).in_(run_ids),
        col(Metric.key).in_(keys),
        col(axis_metric.run_id) == col(Metric.run_id),
        col(axis_metric.step) == col(Metric.step),
        col(axis_metric.key) == metric,
        col(axis_metric.value).is_not(None),
        col(axis_metric.value) >= least,
        col(axis_metric.value) <= most,
    )
    ends = select(
        func.min(axis_metric.value), func.max(axis_metric.value), func.count(col(Metric.id))
    )
    first, last, count = db.exec(ends.where(*joined)).one()
    low, high = first or 0.0, last or 0.0
    crowded = high > low and count > buckets * len(run_ids) * len(keys)
    value: Any = axis_metric.value
    width = (high - low) / buckets
    place = low + (func.floor((value - low) / width) + 0.5) * width if crowded else value
    return _load_grouped(db, place, joined), crowded


def first_non_finite(db: Session, pairs: Sequence[CurveKey]) -> dict[CurveKey, int]:
    """Return the first step of each curve whose value was not finite."""
    first = select(func.min(Metric.step)).where(col(Metric.value).is_(None))
    first_steps = {pair: db.exec(first.where(*_is_of_curve(pair))).one() for pair in pairs}
    return {pair: step for pair, step in first_steps.items() if step is not None}


def curve_keys(run_ids: Sequence[int], keys: Sequence[str]) -> list[CurveKey]:
    return list(product(dict.fromkeys(run_ids), dict.fromkeys(keys)))


def _measure_extent(
    db: Session, pair: CurveKey, part: AxisRange, buckets: int
) -> CurveExtent | None:
    """Measure a curve without reading it: every axis increases with the steps."""
    of_pair = part.conditions_for(pair)
    ends = (col(Metric.step), col(Metric.step).desc())
    parts = [
        select(column).where(*of_pair).order_by(end).limit(1)
        for column in (part.place, col(Metric.step))
        for end in ends
    ]
    more = select(Metric.step).where(*of_pair).order_by(col(Metric.step)).offset(buckets).limit(1)
    columns: Any = [part.scalar_subquery() for part in (*parts, more)]
    low, high, first, last, beyond = db.exec(select(*columns)).one()
    if low is None:
        return None
    return CurveExtent(low=low, high=high, first=first, last=last, is_crowded=beyond is not None)


def _load_each(db: Session, pairs: Sequence[CurveKey], axis_range: AxisRange) -> list[CurvePoint]:
    """Return curves with each point as logged."""
    rows = (
        row
        for pair in pairs
        for row in _load_grouped(db, axis_range.place, axis_range.conditions_for(pair))
    )
    return [(row[0], row[1], row[2] + axis_range.offsets.get(row[0], 0), *row[3:]) for row in rows]


def _load_grouped(
    db: Session,
    place: Any,  # noqa: ANN401 -- a column or a sum, of any type
    conditions: Sequence[ColumnElement[bool]],
) -> Sequence[CurvePoint]:
    columns: Any = (
        Metric.run_id,
        Metric.key,
        place.label("spot"),
        func.avg(Metric.value),
        func.min(Metric.value),
        func.max(Metric.value),
        func.max(func.length(Metric.non_finite)) > 0,
    )
    query = select(*columns).where(*conditions)
    points: Sequence[CurvePoint] = db.exec(
        query.group_by(col(Metric.run_id), col(Metric.key), "spot").order_by("spot")
    ).all()
    return points


def _load_step_buckets(
    db: Session, pair: CurveKey, axis_range: AxisRange, buckets: Buckets
) -> Iterator[CurvePoint]:
    """Yield one curve in buckets of its steps.

    Each bucket uses the index: a third of the work of sorting all points.
    """
    broken = select(Metric.step).where(
        *axis_range.conditions_for(pair), col(Metric.value).is_(None)
    )
    bad = {buckets.number(step) for step in db.exec(broken)}
    for number, *values in _query_buckets(db, axis_range.conditions_for(pair), buckets, ()):
        if values[0] is not None or number in bad:
            yield (*pair, buckets.middle(number), *values, number in bad)


def _load_own_buckets(
    db: Session, pair: CurveKey, extent: CurveExtent, axis_range: AxisRange, buckets: int
) -> Iterator[_Placed]:
    """Yield one curve in buckets of its own steps, with the place of their middle on the axis."""
    place = axis_range.place
    broken = select(place).where(*axis_range.conditions_for(pair), col(Metric.value).is_(None))
    yield from ((position, None, None, None, True) for position in db.exec(broken))
    if not extent.is_crowded:
        points = select(place, Metric.value).where(
            *axis_range.conditions_for(pair), col(Metric.value).is_not(None)
        )
        yield from ((position, value, value, value, False) for position, value in db.exec(points))
        return
    own_buckets = Buckets(
        low=extent.first, width=(extent.last - extent.first) / buckets, count=buckets
    )
    ends = (col(Metric.step), col(Metric.step).desc())
    for _number, mean, least, greatest, first, last in _query_buckets(
        db,
        axis_range.conditions_for(pair),
        own_buckets,
        [select(place).order_by(end).limit(1) for end in ends],
    ):
        if mean is not None:
            yield (first + last) / 2, mean, least, greatest, False


def _query_buckets(
    db: Session, of_pair: Sequence[Any], buckets: Buckets, extra_columns: Sequence[Any]
) -> Iterator[Any]:
    """Query mean, minimum and maximum of each bucket, and further columns."""
    bucket = select(literal(0).label("number")).cte("bucket", recursive=True)
    next_bucket = select(bucket.c.number + 1).where(bucket.c.number < buckets.count)
    bucket = bucket.union_all(next_bucket)
    first, beyond = (buckets.low + (bucket.c.number + i) * buckets.width for i in (0, 1))
    inside = (*of_pair, col(Metric.step) >= first, col(Metric.step) < beyond)
    aggregates: list[Any] = [
        select(aggregate(Metric.value)) for aggregate in (func.avg, func.min, func.max)
    ]
    parts = [
        subquery.where(*inside).scalar_subquery() for subquery in (*aggregates, *extra_columns)
    ]
    yield from db.exec(select(bucket.c.number, *parts))


def _merge_buckets(points: Iterator[_Placed], offset: float, buckets: Buckets) -> Iterator[_Placed]:
    """Merge the buckets of one curve into those that all curves share."""
    points_by_bucket: dict[int, list[_Placed]] = defaultdict(list)
    for point in points:
        points_by_bucket[buckets.number(point[0] + offset)].append(point)
    for number, bucket_points in sorted(points_by_bucket.items()):
        means = [member[1] for member in bucket_points if member[1] is not None]
        yield (
            buckets.middle(number),
            math.fsum(means) / len(means) if means else None,
            min((member[2] for member in bucket_points if member[2] is not None), default=None),
            max((member[3] for member in bucket_points if member[3] is not None), default=None),
            any(member[4] for member in bucket_points),
        )


def _is_of_curve(pair: CurveKey) -> tuple[ColumnElement[bool], ...]:
    run_id, key = pair
    return col(Metric.run_id) == run_id, col(Metric.key) == key
