"""Metrics of evaluations as metrics of the run: for tables, comparisons and sweeps."""

import math
from collections.abc import Mapping, Sequence

from studio.evaluation import metrics, statistics
from studio.evaluation.evaluation_metric import EvaluationMetric
from studio.evaluation.metrics import EVALUATION_METRICS
from studio.evaluation.rows import AnsweredRow, AnswerKind
from studio.metrics import MetricSpec, is_share

PREFIX = "evaluation_"
"""How the keys of these metrics begin."""

_UNITS = {"nats": "nats/token", "bits": "bits/byte", "tokens": "tokens"}


def run_key(metric: EvaluationMetric) -> str:
    """Return the key of an evaluation's metric among those of the run."""
    key = PREFIX + metric.key
    return f"{key}_share" if metric.unit == "share" and not is_share(key) else key


def is_evaluated(key: str) -> bool:
    """Whether a metric is measured by an evaluation, after training."""
    return key in RUN_METRICS


def measure(rows: Sequence[AnsweredRow]) -> dict[str, float]:
    """Return the value of each metric that applies to the rows, by its key in the run."""
    values = {run_key(metric): statistics.value(metric, rows) for metric in metrics.for_rows(rows)}
    return {key: value for key, value in values.items() if math.isfinite(value)}


def _spec(metric: EvaluationMetric) -> MetricSpec:
    return MetricSpec(
        key=run_key(metric),
        title=metric.title,
        unit=_UNITS.get(metric.unit, ""),
        better="" if metric.better == "neither" else metric.better,
        is_objective=metric.better != "neither" and metric.needs_reference,
        chart="-",
    )


def specs_of(kind: AnswerKind) -> list[MetricSpec]:
    """Return the metrics of runs whose models give answers of a kind."""
    return [
        RUN_METRICS[run_key(metric)]
        for metric in EVALUATION_METRICS.values()
        if metric.kind == kind
    ]


RUN_METRICS: Mapping[str, MetricSpec] = {
    run_key(metric): _spec(metric) for metric in EVALUATION_METRICS.values()
}
"""All of them by key, in display order."""
