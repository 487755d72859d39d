"""What a benchmark found: each metric for both models, and what differs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session

from studio.db.benchmarks import Benchmark, ScoreSet
from studio.evaluation import statistics, verdicts
from studio.evaluation.benchmarks import METRICS
from studio.evaluation.evaluation_metric import Metric
from studio.evaluation.statistics import Comparison, Figure
from studio.services.evaluations import benchmarks


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkMetric:
    """A metric of both models on the same rows."""

    metric: Metric
    base: Figure
    tuned: Figure
    base_stderr: float | None
    tuned_stderr: float | None
    """lm-eval's standard errors; None if it gives none."""
    comparison: Comparison
    is_better: bool | None
    """Whether the run's model is clearly better or clearly worse; None if that is not clear."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkResults:
    """What a benchmark found."""

    primary: Metric
    """The metric that decides."""
    verdict: str
    is_success: bool | None
    """None if there is no clear difference."""
    caution: str
    """What many looks mean, if several metrics were compared."""
    metrics: list[BenchmarkMetric]
    signature: str
    computed_in: str


def load(db: Session, benchmark: Benchmark) -> BenchmarkResults | None:
    """Return what a benchmark found; None until both models have been measured."""
    base, tuned = benchmarks.load_score_sets(db, benchmark)
    if base.finished_at is None or tuned.finished_at is None:
        return None
    key = f"{base.key} {tuned.key}"
    if key not in _CACHE:
        _CACHE[key] = compute(base, tuned)
        while len(_CACHE) > _MAX_CACHED:
            _CACHE.pop(next(iter(_CACHE)), None)
    return _CACHE[key]


_CACHE: dict[str, BenchmarkResults] = {}
"""Results by the keys of their scores, which never change; resampling them takes a while."""
_MAX_CACHED = 64


def compute(base: ScoreSet, tuned: ScoreSet) -> BenchmarkResults:
    """Compare the scores of two models on the same rows."""
    compared = (
        _compare(METRICS[key], base.scores[key], scores)
        for key, scores in tuned.scores.items()
        if key in base.scores
    )
    found = [one for one in compared if one is not None]
    primary = METRICS[next(iter(tuned.scores))]
    first = next((one for one in found if one.metric.key == primary.key), None)
    return BenchmarkResults(
        primary=primary,
        verdict=(
            verdicts.verdict(primary, first.base, first.tuned, first.comparison)
            if first
            else "No row could be scored."
        ),
        is_success=first.is_better if first else None,
        caution=verdicts.count_looks(len(found)),
        metrics=found,
        signature=tuned.signature,
        computed_in=" and ".join(sorted({base.computed_in, tuned.computed_in})),
    )


def _compare(
    metric: Metric, base: Mapping[str, Any], tuned: Mapping[str, Any]
) -> BenchmarkMetric | None:
    first, second = (
        {name: tuple(counted) for name, counted in side["rows"].items()} for side in (base, tuned)
    )
    before, after = (statistics.measure_statistics(metric, side) for side in (first, second))
    comparison = statistics.compare_statistics(metric, first, second)
    if before is None or after is None or comparison is None:
        return None
    return BenchmarkMetric(
        metric=metric,
        base=before,
        tuned=after,
        base_stderr=base["stderr"],
        tuned_stderr=tuned["stderr"],
        comparison=comparison,
        is_better=verdicts.is_better(metric, comparison),
    )
