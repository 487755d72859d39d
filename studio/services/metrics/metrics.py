"""Read metrics of runs: rows after an id, and whole curves reduced to a screen's resolution.

Curves are aggregated into buckets with minimum, maximum and mean, never sampled at random: a spike
survives, and a curve does not change between requests. All curves of one response share their
buckets, so that runs can be overlaid.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import inspect
from sqlmodel import Session, col, func, select
from sqlmodel.sql.expression import SelectOfScalar

from studio.db.tables import Metric, Run
from studio.services.metrics import curve_query
from studio.services.metrics.curve_query import CurveKey

NumberFormat = Callable[[float | None], float | None]

AXES = ("step", "relative_step", "epoch", "tokens", "seconds", "wall")
"""Axes of curves, besides any metric.

A relative step counts from the run's first one. Seconds are training time without pauses; wall is
the same after the time of the first step, in Unix time.
"""

FULL_RANGE = (-math.inf, math.inf)
"""The default range of an axis."""

AXIS_COLUMNS = {"relative_step": "step", "wall": "seconds"}
"""Columns of axes that have another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """All values logged for one step at one time."""

    last_id: int
    step: int
    epoch: float
    tokens: int
    seconds: float
    values: dict[str, float | str]
    """Finite values as numbers; others by name: "nan", "inf", "-inf"."""


@dataclass(slots=True)
class Series:
    """One metric of one run. Each list is as long as the curves' x axis."""

    mean: list[float | None]
    min: list[float | None]
    max: list[float | None]
    non_finite: list[float] = field(default_factory=list)
    """Places on the x axis where the value was not finite."""
    first_broken: int | None = None
    """The first step of these."""
    broken_run: int | None = None
    """The run that logged it: in a group, the first of its runs."""


@dataclass(frozen=True, slots=True)
class Curves:
    x: list[float]
    series: dict[CurveKey, Series]
    """By run and metric."""
    last_id: int = 0
    """The newest metric id of these runs: a live viewer continues from here."""
    offsets: Mapping[int, float] = field(default_factory=dict)
    """What was added to a run's steps or seconds to place them on the axis."""


def list_keys(db: Session, run_ids: Sequence[int]) -> list[str]:
    query = select(Metric.key).where(col(Metric.run_id).in_(run_ids)).distinct()
    return sorted(db.exec(query))


def load_rows_after(
    db: Session, run_id: int, last_id: int, *, limit: int = 5000
) -> list[MetricRow]:
    """Return the rows logged after `last_id`, in order, one row per step."""
    return load_rows_by_run(db, [run_id], last_id, limit=limit).get(run_id, [])


def load_curves(
    db: Session,
    run_ids: Sequence[int],
    keys: Sequence[str],
    *,
    x: str = "step",
    buckets: int = 1000,
    part: tuple[float, float] = FULL_RANGE,
) -> Curves:
    """Return metrics of runs along an axis, in at most `buckets` shared buckets of equal width.

    `part` is a range of the axis: all buckets then cover this range. If every curve has fewer
    points than buckets, each point is returned as logged. The axis is one of `AXES` or another
    metric, which is joined by step.
    """
    offsets = _offsets(db, run_ids, x)
    if x in AXES:
        pairs = curve_query.curve_keys(run_ids, keys)
        rows, crowded = curve_query.load_along_axis(
            db, pairs, AXIS_COLUMNS.get(x, x), offsets, (buckets, part)
        )
    else:
        rows, crowded = curve_query.load_against_metric(db, run_ids, keys, x, (buckets, part))
    # Screens show no more digits of aggregated points, and digits dominate the response size.
    number_format = _six_digits if crowded else _exact
    curves = _align(rows, number_format)
    broken = [pair for pair, series in curves.series.items() if series.non_finite]
    for pair, step in curve_query.first_non_finite(db, broken).items():
        series = curves.series[pair]
        series.first_broken, series.broken_run = step, pair[0]
    return replace(curves, last_id=newest_id(db, run_ids), offsets=offsets)


def load_rows_by_run(
    db: Session, run_ids: Sequence[int], last_id: int, *, limit: int = 5000
) -> dict[int, list[MetricRow]]:
    """Return the rows that runs logged after `last_id`, by run, in order, one row per step."""
    # Reading columns takes a third of the time of ORM objects.
    query: SelectOfScalar[Any] = (
        select(*inspect(Metric).columns)
        .where(col(Metric.run_id).in_(run_ids), col(Metric.id) > last_id)
        .order_by(col(Metric.id))
        .limit(limit)
    )
    by_run: dict[int, list[Any]] = defaultdict(list)
    for metric in db.exec(query):
        by_run[metric.run_id].append(metric)
    return {run_id: list(_group_rows(rows)) for run_id, rows in by_run.items()}


def _offsets(db: Session, run_ids: Sequence[int], x: str) -> dict[int, float]:
    """Return what to add to each run's places, on axes that depend on the run's start."""
    if x == "wall":
        query = select(Run.id, Run.first_step_at, Run.started_at, Run.created_at)
        rows = db.exec(query.where(col(Run.id).in_(run_ids)))
        return {number or 0: _first_moment(*times).timestamp() for number, *times in rows}
    if x == "relative_step":
        first = {run_id: db.exec(_first_step_query(run_id)).first() for run_id in run_ids}
        return {run_id: -step for run_id, step in first.items() if step is not None}
    return {}


def _first_step_query(run_id: int) -> SelectOfScalar[int]:
    return select(Metric.step).where(Metric.run_id == run_id).order_by(col(Metric.id)).limit(1)


def _first_moment(
    first_step: datetime | None, started: datetime | None, created: datetime
) -> datetime:
    return first_step or started or created


def newest_id(db: Session, run_ids: Sequence[int]) -> int:
    """Return the newest metric id of runs, or 0."""
    newest = (
        db.exec(select(func.max(Metric.id)).where(Metric.run_id == run_id)).one()
        for run_id in run_ids
    )
    return max((number or 0 for number in newest), default=0)


def _exact(value: float | None) -> float | None:
    return value


def _six_digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _align(rows: Sequence[Any], number_format: NumberFormat) -> Curves:
    x = sorted({row[2] for row in rows})
    index = {place: i for i, place in enumerate(x)}
    series: dict[CurveKey, Series] = {}
    for run_id, key, place, mean, least, greatest, bad in rows:
        if (run_id, key) not in series:
            series[run_id, key] = Series([None] * len(x), [None] * len(x), [None] * len(x))
        line, i = series[run_id, key], index[place]
        line.mean[i], line.min[i], line.max[i] = (
            number_format(mean),
            number_format(least),
            number_format(greatest),
        )
        if bad:
            line.non_finite.append(place)
    return Curves(x, series)


def _group_rows(metrics: Iterable[Any]) -> Iterable[MetricRow]:
    metrics_by_time: dict[tuple[int, float], list[Any]] = defaultdict(list)
    for metric in metrics:
        metrics_by_time[metric.step, metric.seconds].append(metric)
    for group in metrics_by_time.values():
        last = group[-1]
        yield MetricRow(
            last_id=last.id,
            step=last.step,
            epoch=last.epoch,
            tokens=last.tokens,
            seconds=last.seconds,
            values={
                member.key: member.non_finite if member.value is None else member.value
                for member in group
            },
        )
