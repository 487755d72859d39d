"""Comparable values of a run's and the baseline's metrics: of the same step, and smoothed.

Two runs that succeeded are compared at their ends, any other pair at the last step that both have
reached. A metric that is noisy from batch to batch is compared by its mean over the last ten logged
steps.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from sqlmodel import Session, col, select

from studio.db.states import RunStatus
from studio.db.summaries import MetricSummary
from studio.db.tables import Metric, Run
from studio.services.metrics import metric_summaries

SMOOTHING_STEPS = 10
"""Number of steps that a noisy metric is averaged over."""
UNSMOOTHED_METRICS = frozenset({"learning_rate", "loss_scale", "skipped_steps", "tokens"})
"""Exact values at every step, which an average would distort."""

RunMetric = tuple[int, str]
"""A run's id and a metric key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPair:
    """A metric's values of a run and the baseline, as compared."""

    value: float
    baseline: float
    step: int | None = None
    """The step of both; None if each is at its end."""
    steps: int = 1
    """Most steps that each value is the mean of."""

    @property
    def is_final(self) -> bool:
        """Whether it is the final value of each."""
        return self.step is None and self.steps == 1


def is_noisy(metric: str) -> bool:
    """Return whether a metric varies from batch to batch. Validations average over all rows."""
    return metric not in UNSMOOTHED_METRICS and not metric.startswith(
        ("eval_", "best_", "nonfinite_")
    )


def pair_metrics(db: Session, runs: Sequence[Run], base: Run) -> dict[RunMetric, MetricPair]:
    """Return the comparable values of each run and the baseline, by run and metric."""
    run_ids = [run.id or 0 for run in (*runs, base)]
    summaries = metric_summaries.load_by_run(db, run_ids)
    pairs = ((run, _pair_runs(db, run, base, summaries)) for run in runs if run is not base)
    return {
        (run.id or 0, key): reading for run, readings in pairs for key, reading in readings.items()
    }


def _pair_runs(
    db: Session, run: Run, base: Run, summaries: Mapping[int, Mapping[str, MetricSummary]]
) -> dict[str, MetricPair]:
    shared = [key for key in run.metrics if key in base.metrics]
    of_run, of_base = (summaries.get(member.id or 0, {}) for member in (run, base))
    if {run.status, base.status} == {RunStatus.SUCCEEDED}:
        return {
            key: _pair_at_end(key, run.metrics[key], base.metrics[key], of_run, of_base)
            for key in shared
        }
    last = {
        key: min(of_run[key].step, of_base[key].step)
        for key in shared
        if key in of_run and key in of_base
    }
    points = [_load_points(db, member.id or 0, last) for member in (run, base)]
    readings = ((key, _pair_at_step(key, points[0][key], points[1][key])) for key in last)
    return {key: reading for key, reading in readings if reading}


def _pair_at_end(
    key: str,
    value: float,
    baseline: float,
    of_run: Mapping[str, MetricSummary],
    of_base: Mapping[str, MetricSummary],
) -> MetricPair:
    means = [summaries[key].mean10 if key in summaries else None for summaries in (of_run, of_base)]
    counts = [summaries[key].count if key in summaries else 0 for summaries in (of_run, of_base)]
    if not is_noisy(key) or max(counts) <= 1 or None in means:
        return MetricPair(value=value, baseline=baseline)
    return MetricPair(value=means[0] or 0.0, baseline=means[1] or 0.0, steps=SMOOTHING_STEPS)


def _pair_at_step(
    key: str, run: Sequence[tuple[int, float]], base: Sequence[tuple[int, float]]
) -> MetricPair | None:
    """Compare points of two runs, oldest first, at the last step that both have."""
    steps = {step for step, _value in run} & {step for step, _value in base}
    if not steps:
        return None
    until = max(steps)
    width = SMOOTHING_STEPS if is_noisy(key) else 1
    means = [
        fmean([value for step, value in points if step <= until][-width:]) for points in (run, base)
    ]
    return MetricPair(value=means[0], baseline=means[1], step=until, steps=width)


def _load_points(
    db: Session, run_id: int, last: Mapping[str, int]
) -> Mapping[str, list[tuple[int, float]]]:
    """Return a run's finite values up to the given step of each metric, oldest first."""
    points: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for key, until in last.items():
        points[key] = _load_newest(db, run_id, key, until)
    return points


def _load_newest(db: Session, run_id: int, key: str, until: int) -> list[tuple[int, float]]:
    query = (
        select(Metric.step, Metric.value)
        .where(Metric.run_id == run_id, Metric.key == key, Metric.step <= until)
        .where(col(Metric.value).is_not(None))
        .order_by(col(Metric.step).desc())
        .limit(SMOOTHING_STEPS * 2)
    )
    return [(step, value) for step, value in reversed(db.exec(query).all()) if value is not None]
