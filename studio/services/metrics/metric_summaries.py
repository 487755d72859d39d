"""Metric summaries, updated as values arrive: lists show, sort and filter by them.

Every update takes the same time, whatever the length of the run. If a run resumes from a
checkpoint, its summaries are rebuilt up to there, because it logs what follows again.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import CTE, Engine, Integer, ScalarSelect, String, column, values
from sqlalchemy import select as sql_select
from sqlalchemy.orm.attributes import flag_modified
from sqlmodel import Session, col, delete, exists, func, select
from sqlmodel.sql.expression import SelectOfScalar

from studio.db.session import read_session, unit_of_work
from studio.db.sql_functions import distinct_values
from studio.db.summaries import MetricSummary
from studio.db.tables import Metric, Run

SMOOTHING_WEIGHT = 0.9
"""Weight of the previous smoothed value."""

SHORT_WINDOW, LONG_WINDOW = 10, 100
"""Numbers of latest values that the two means cover."""

MAX_POINTS = 48
"""Most points of a sparkline; beyond that, pairs of points are merged."""

StepValue = tuple[int, float | None, str]
"""A step, its finite value, and the name of a non-finite one."""

RunKey = tuple[int, str]
"""A run and one of its metrics."""

_COLUMNS = tuple(name for name in MetricSummary.model_fields if name not in {"run_id", "key"})


def add(db: Session, rows: Iterable[Mapping[str, Any]]) -> None:
    """Update summaries with values that were just stored: rows of `Metric`, oldest first."""
    new: dict[RunKey, list[StepValue]] = defaultdict(list)
    for row in rows:
        new[row["run_id"], row["key"]].append((row["step"], row["value"], row["non_finite"]))
    if new:
        stored = load_by_run(db, sorted({run_id for run_id, _key in new}))
        summaries = [
            stored.get(run_id, {}).get(key) or _new_summary(db, run_id, key) for run_id, key in new
        ]
        _add_values(db, summaries, new)


def add_final_values(db: Session, run_id: int, final: Mapping[str, float]) -> None:
    """Update summaries with what a run logs once at its end, e.g. memory and a last validation."""
    summaries = load_by_run(db, [run_id]).get(run_id, {})
    for key, value in final.items():
        summary = summaries.get(key) or _new_summary(db, run_id, key)
        finite = math.isfinite(value)
        if summary.count and summary.last == value:
            continue
        _add_value(summary, (summary.step, value if finite else None, "" if finite else str(value)))
        if summary.count <= 1:
            summary.mean10 = summary.mean100 = summary.last


def truncate(db: Session, run_id: int, step: int | None) -> None:
    """Remove what follows a step from a run's summaries; None removes all of it."""
    db.exec(delete(MetricSummary).where(col(MetricSummary.run_id) == run_id))
    if step is not None:
        _rebuild(db, run_id, step)


def load_by_run(
    db: Session, run_ids: Sequence[int], keys: Iterable[str] | None = None
) -> dict[int, dict[str, MetricSummary]]:
    """Return the summaries of runs, by run and key: of some metrics, or of all."""
    summaries_by_run: dict[int, dict[str, MetricSummary]] = defaultdict(dict)
    query = select(MetricSummary).where(col(MetricSummary.run_id).in_(run_ids))
    if keys is not None:
        query = query.where(col(MetricSummary.key).in_(list(keys)))
    for summary in db.exec(query):
        summaries_by_run[summary.run_id][summary.key] = summary
    return summaries_by_run


def latest_values(db: Session, run_id: int) -> dict[str, float]:
    """Return the latest value of each metric of a run, finite or not."""
    summaries = load_by_run(db, [run_id]).get(run_id, {})
    return {
        key: float(summary.non_finite or summary.last or 0) for key, summary in summaries.items()
    }


def list_keys(db: Session) -> list[str]:
    """Return the metrics that any run has logged."""
    return [key for key in db.scalars(distinct_values(col(MetricSummary.key))) if key is not None]


def backfill(engine: Engine) -> None:
    """Build the summaries of runs from versions that had none."""
    with read_session(engine) as db:
        missing = db.exec(_runs_without_summaries()).all()
    for run_id in missing:
        with unit_of_work(engine) as db:
            _rebuild(db, run_id, None)
            add_final_values(db, run_id, db.get_one(Run, run_id).metrics)


def _runs_without_summaries() -> SelectOfScalar[Any]:
    has_metrics = exists().where(col(Metric.run_id) == col(Run.id))
    has_summary = exists().where(col(MetricSummary.run_id) == col(Run.id))
    return select(Run.id).where(has_metrics, ~has_summary)


def _rebuild(db: Session, run_id: int, until: int | None) -> None:
    query = select(Metric.key, Metric.step, Metric.value, Metric.non_finite)
    query = query.where(Metric.run_id == run_id)
    if until is not None:
        query = query.where(col(Metric.step) <= until)
    values_by_key: dict[RunKey, list[StepValue]] = defaultdict(list)
    for key, step, value, non_finite in db.exec(query.order_by(col(Metric.step))):
        values_by_key[run_id, key].append((step, value, non_finite))
    _add_values(db, [_new_summary(db, *run_key) for run_key in values_by_key], values_by_key)


def _new_summary(db: Session, run_id: int, key: str) -> MetricSummary:
    summary = MetricSummary(run_id=run_id, key=key, step=-1)
    db.add(summary)
    return summary


def _add_values(
    db: Session,
    summaries: Sequence[MetricSummary],
    values_by_key: Mapping[RunKey, Sequence[StepValue]],
) -> None:
    for summary in summaries:
        curve = list(summary.curve)
        for number in values_by_key[summary.run_id, summary.key]:
            # A value that is logged again was counted already.
            if number[0] > summary.step:
                _add_value(summary, number, curve)
        summary.curve = curve
    means = _load_means(db, summaries)
    for summary in summaries:
        summary.mean10, summary.mean100 = means[summary.run_id, summary.key]
        # Rows whose columns are the same are written together.
        for name in _COLUMNS:
            flag_modified(summary, name)


def _add_value(summary: MetricSummary, number: StepValue, curve: list[float] | None = None) -> None:
    summary.step, value, summary.non_finite = number
    summary.last = value
    if value is None:
        summary.broken += 1
        return
    summary.least = value if summary.least is None else min(summary.least, value)
    summary.greatest = value if summary.greatest is None else max(summary.greatest, value)
    mass = 1 - SMOOTHING_WEIGHT**summary.count
    carried = (summary.smoothed or 0.0) * mass * SMOOTHING_WEIGHT
    summary.count += 1
    summary.smoothed = (carried + (1 - SMOOTHING_WEIGHT) * value) / (
        1 - SMOOTHING_WEIGHT**summary.count
    )
    if curve is not None:
        _append_point(curve, summary.count, value)


def _append_point(curve: list[float], count: int, value: float) -> None:
    """Append value number `count` to a curve of at most `MAX_POINTS` points."""
    stride = _stride(count - 1)
    merged_count = (count - 1) - (len(curve) - 1) * stride
    if curve and merged_count < stride:
        curve[-1] = _six_digits((curve[-1] * merged_count + value) / (merged_count + 1))
        return
    curve.append(_six_digits(value))
    if len(curve) > MAX_POINTS:
        pairs = zip(curve[0:-1:2], curve[1::2], strict=False)
        curve[:] = [*(_six_digits((a + b) / 2) for a, b in pairs), curve[-1]]


def _stride(count: int) -> int:
    """Return the number of values that each point of a curve averages."""
    stride = 1
    while count > stride * MAX_POINTS:
        stride *= 2
    return stride


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}")


def _load_means(
    db: Session, summaries: Sequence[MetricSummary]
) -> dict[RunKey, tuple[float | None, float | None]]:
    """Return the means of the latest finite values of metrics, over both windows, in one query."""
    if not summaries:
        return {}
    columns = (column("run_id", Integer), column("key", String), column("step", Integer))
    rows = [(summary.run_id, summary.key, summary.step) for summary in summaries]
    newest = values(*columns, name="newest").data(rows).cte()
    query = sql_select(
        newest.c.run_id, newest.c.key, _mean(newest, SHORT_WINDOW), _mean(newest, LONG_WINDOW)
    )
    with db.no_autoflush:  # Else summaries were written twice, before and after.
        return {(run_id, key): (short, long) for run_id, key, short, long in db.execute(query)}


def _mean(newest: CTE, window: int) -> ScalarSelect[float | None]:
    latest = (
        sql_select(col(Metric.value))
        .where(
            col(Metric.run_id) == newest.c.run_id,
            col(Metric.key) == newest.c.key,
            col(Metric.step) <= newest.c.step,
            col(Metric.value).is_not(None),
        )
        .order_by(col(Metric.step).desc())
        .limit(window)
        .correlate(newest)
        .subquery()
    )
    return sql_select(func.avg(latest.c.value)).scalar_subquery()
