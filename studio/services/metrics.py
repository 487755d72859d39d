"""Numbers of runs, read back: the newest after an id, and whole curves cut to what a screen shows.

Curves are cut into buckets with their least, greatest and mean value, never sampled at random: a
spike survives, and a curve does not jump about when it is asked for again. All curves of one
answer share their buckets, so that runs can be laid over each other.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlmodel import Session, col, func, select

from studio.db.tables import Metric

Written = Callable[[float | None], float | None]
Axis = Literal["step", "epoch", "tokens", "seconds"]

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
    series: dict[tuple[int, str], Series]
    """By run and metric."""
    last_id: int
    """The newest number these curves hold: a live viewer goes on from here."""


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
    chosen = (col(Metric.run_id).in_(run_ids), col(Metric.key).in_(wanted))
    sizes = db.exec(
        select(func.count(), func.min(place), func.max(place), func.max(Metric.id))
        .where(*chosen)
        .group_by(col(Metric.run_id), col(Metric.key))
    ).all()
    if not sizes:
        return Curves([], {}, 0)
    low, high = min(size[1] for size in sizes), max(size[2] for size in sizes)
    crowded = max(size[0] for size in sizes) > buckets and high > low
    width = (high - low) / buckets if crowded else 0
    spot = low + (func.floor((place - low) / width) + 0.5) * width if width else place
    columns: Any = (
        Metric.run_id,
        Metric.key,
        spot,
        func.avg(Metric.value),
        func.min(Metric.value),
        func.max(Metric.value),
        func.max(func.length(Metric.non_finite)),
    )
    rows = db.exec(
        select(*columns)
        .where(*chosen)
        .group_by(col(Metric.run_id), col(Metric.key), spot)
        .order_by(spot)
    ).all()
    # Of many points in one no screen shows more digits, and digits are most of the answer.
    written = _short if width else _whole
    return _aligned(rows, written, last_id=max(size[3] or 0 for size in sizes))


def _whole(value: float | None) -> float | None:
    return value


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _aligned(rows: Sequence[Any], written: Written, last_id: int) -> Curves:
    x = sorted({row[2] for row in rows})
    index = {place: i for i, place in enumerate(x)}
    series: dict[tuple[int, str], Series] = {}
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
