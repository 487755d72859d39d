"""Numbers of runs, read back: the newest after an id, and whole curves cut to what a screen shows.

Curves are cut into buckets with their least, greatest and mean value, never sampled at random: a
spike survives, and a curve does not jump about when it is asked for again. All curves of one
answer share their buckets, so that runs can be laid over each other.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

from sqlalchemy import ColumnElement, literal
from sqlmodel import Session, col, func, select

from studio.db.tables import Metric

Written = Callable[[float | None], float | None]
Axis = Literal["step", "epoch", "tokens", "seconds"]
Pair = tuple[int, str]
"""A run and a metric: what one curve is of."""

_Point = Any
"""Run, metric, place, mean, least, greatest, and whether some number there was not finite."""

_PLACES = {
    "step": col(Metric.step),
    "epoch": col(Metric.epoch),
    "tokens": col(Metric.tokens),
    "seconds": col(Metric.seconds),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """All numbers told for one step at one moment."""

    last_id: int
    step: int
    epoch: float
    tokens: int
    seconds: float
    values: dict[str, float | str]
    """Finite numbers as they are; others by name: "nan", "inf", "-inf"."""


@dataclass(slots=True)
class Series:
    """One metric of one run. Each list is as long as the curves' x axis."""

    mean: list[float | None]
    min: list[float | None]
    max: list[float | None]
    non_finite: list[float] = field(default_factory=list)
    """Places on the x axis where the number was not finite."""


@dataclass(frozen=True, slots=True)
class Curves:
    x: list[float]
    series: dict[Pair, Series]
    """By run and metric."""
    last_id: int
    """The newest number these runs had told: a live viewer goes on from here."""


def keys(db: Session, run_ids: Sequence[int]) -> list[str]:
    query = select(Metric.key).where(col(Metric.run_id).in_(run_ids)).distinct()
    return sorted(db.exec(query))


def after(db: Session, run_id: int, last_id: int, *, limit: int = 5000) -> list[Row]:
    """Return what was told after `last_id`, in order, one row a step."""
    query = (
        select(Metric)
        .where(Metric.run_id == run_id, col(Metric.id) > last_id)
        .order_by(col(Metric.id))
        .limit(limit)
    )
    return list(_rows(db.exec(query)))


def curves(
    db: Session,
    run_ids: Sequence[int],
    wanted: Sequence[str],
    *,
    x: Axis = "step",
    buckets: int = 1000,
) -> Curves:
    """Return metrics of runs along one axis, in at most `buckets` shared buckets of equal width.

    Where every curve has fewer points than that, each point stands for itself.
    """
    place = _PLACES[x]
    found = {
        pair: extent
        for pair in product(dict.fromkeys(run_ids), dict.fromkeys(wanted))
        if (extent := _extent(db, pair, place, buckets))
    }
    if not found:
        return Curves([], {}, 0)
    low = min(one.low for one in found.values())
    high = max(one.high for one in found.values())
    crowded = high > low and any(one.is_crowded for one in found.values())
    width = (high - low) / buckets if crowded else 0
    if crowded and x == "step":
        cut = _Cut(low, width, buckets)
        rows: Sequence[_Point] = [row for pair in found for row in _looked_up(db, pair, cut)]
    else:
        spot = low + (func.floor((place - low) / width) + 0.5) * width if crowded else place
        rows = _grouped(db, run_ids, wanted, spot)
    # Of many points in one no screen shows more digits, and digits are most of the answer.
    return _aligned(rows, _short if crowded else _whole, last_id=_newest(db, run_ids))


@dataclass(frozen=True, slots=True)
class _Extent:
    """Where a curve begins and ends, and whether it has more points than can be shown."""

    low: float
    high: float
    is_crowded: bool


@dataclass(frozen=True, slots=True)
class _Cut:
    """Equal parts of an axis."""

    low: float
    width: float
    count: int

    def middle(self, number: int) -> float:
        return self.low + (number + 0.5) * self.width


def _extent(db: Session, pair: Pair, place: Any, buckets: int) -> _Extent | None:  # noqa: ANN401 -- a column of any type
    """Measure a curve without reading it: whatever the axis, it grows with the steps."""
    of_pair = select(place).where(*_of(pair)).order_by(col(Metric.step)).limit(1)
    last = select(place).where(*_of(pair)).order_by(col(Metric.step).desc()).limit(1)
    more = select(Metric.step).where(*_of(pair)).order_by(col(Metric.step))
    parts = (of_pair, last, more.offset(buckets).limit(1))
    low, high, beyond = db.exec(select(*(part.scalar_subquery() for part in parts))).one()
    return None if low is None else _Extent(low, high, is_crowded=beyond is not None)


def _newest(db: Session, run_ids: Sequence[int]) -> int:
    newest = (
        db.exec(select(func.max(Metric.id)).where(Metric.run_id == run_id)).one()
        for run_id in run_ids
    )
    return max((number or 0 for number in newest), default=0)


def _grouped(
    db: Session,
    run_ids: Sequence[int],
    wanted: Sequence[str],
    spot: Any,  # noqa: ANN401 -- a column or a sum, of any type
) -> Sequence[_Point]:
    """Read all curves at once, their points gathered where `spot` is the same."""
    columns: Any = (
        Metric.run_id,
        Metric.key,
        spot.label("spot"),
        func.avg(Metric.value),
        func.min(Metric.value),
        func.max(Metric.value),
        func.max(func.length(Metric.non_finite)) > 0,
    )
    chosen = (col(Metric.run_id).in_(run_ids), col(Metric.key).in_(wanted))
    query = select(*columns).where(*chosen)
    found: Sequence[_Point] = db.exec(
        query.group_by(col(Metric.run_id), col(Metric.key), "spot").order_by("spot")
    ).all()
    return found


def _looked_up(db: Session, pair: Pair, cut: _Cut) -> Iterator[_Point]:
    """Read one curve in parts of its steps.

    Each part looks its points up in an index: a third of the work of sorting them all.
    """
    bucket = select(literal(0).label("number")).cte("bucket", recursive=True)
    following = select(bucket.c.number + 1).where(bucket.c.number < cut.count)
    bucket = bucket.union_all(following)
    first, beyond = (cut.low + (bucket.c.number + i) * cut.width for i in (0, 1))
    inside = (*_of(pair), col(Metric.step) >= first, col(Metric.step) < beyond)
    told = (func.avg(Metric.value), func.min(Metric.value), func.max(Metric.value))
    parts = (select(one).where(*inside).scalar_subquery() for one in told)
    broken = select(Metric.step).where(*_of(pair), col(Metric.value).is_(None))
    bad = {math.floor((step - cut.low) / cut.width) for step in db.exec(broken)}
    for number, *values in db.exec(select(bucket.c.number, *parts)):
        if values[0] is not None or number in bad:
            yield (*pair, cut.middle(number), *values, number in bad)


def _of(pair: Pair) -> tuple[ColumnElement[bool], ...]:
    run_id, key = pair
    return col(Metric.run_id) == run_id, col(Metric.key) == key


def _whole(value: float | None) -> float | None:
    return value


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _aligned(rows: Sequence[Any], written: Written, last_id: int) -> Curves:
    x = sorted({row[2] for row in rows})
    index = {place: i for i, place in enumerate(x)}
    series: dict[Pair, Series] = {}
    for run_id, key, place, mean, least, greatest, bad in rows:
        if (run_id, key) not in series:
            series[run_id, key] = Series([None] * len(x), [None] * len(x), [None] * len(x))
        one, i = series[run_id, key], index[place]
        one.mean[i], one.min[i], one.max[i] = written(mean), written(least), written(greatest)
        if bad:
            one.non_finite.append(place)
    return Curves(x, series, last_id)


def _rows(metrics: Iterable[Metric]) -> Iterable[Row]:
    told: dict[tuple[int, float], list[Metric]] = defaultdict(list)
    for metric in metrics:
        told[metric.step, metric.seconds].append(metric)
    for group in told.values():
        last = group[-1]
        yield Row(
            last_id=last.id or 0,
            step=last.step,
            epoch=last.epoch,
            tokens=last.tokens,
            seconds=last.seconds,
            values={one.key: _spoken(one) for one in group},
        )


def _spoken(metric: Metric) -> float | str:
    return metric.non_finite if metric.value is None else metric.value
