"""Read what lm-eval found: its figures, and how it scored each row."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from studio.errors import UnavailableError
from studio.evaluation.benchmarks import HarnessMetric
from studio.protocols.benchmarks import BenchmarkResult, MetricScores

_SAMPLES = "samples_"


def read(folder: Path, metrics: Sequence[HarnessMetric], computed_in: str) -> BenchmarkResult:
    """Return the metrics that lm-eval wrote into a folder.

    Raises:
        UnavailableError: it has not scored a single row.

    """
    results = json.loads(next(folder.rglob("results_*.json")).read_text("utf-8"))
    samples = list(_read_samples(folder))
    scores = {one.metric.key: _scores(one, results, samples) for one in metrics}
    if not all(one.rows for one in scores.values()):
        raise UnavailableError(
            "lm-eval has not scored any row.", hint="The log of the task shows what it did."
        )
    return BenchmarkResult(scores=scores, signature=_signature(results), computed_in=computed_in)


def _read_samples(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the task and the content of each sample."""
    for file in sorted(folder.rglob(f"{_SAMPLES}*.jsonl")):
        task = file.stem.removeprefix(_SAMPLES).rpartition("_")[0]
        with file.open(encoding="utf-8") as lines:
            yield from ((task, json.loads(line)) for line in lines)


def _scores(
    metric: HarnessMetric, results: Mapping[str, Any], samples: Sequence[tuple[str, dict[str, Any]]]
) -> MetricScores:
    name, _, answers = metric.name.partition(",")
    counted = {
        f"{task} {sample['doc_id']}": metric.count(sample[name])
        for task, sample in samples
        if sample["filter"] == answers and name in sample
    }
    # A model whose scores are not finite numbers has none for a row.
    rows = {row: one for row, one in counted.items() if all(map(math.isfinite, one))}
    stderr = _whole(results).get(f"{name}_stderr,{answers}")
    is_known = isinstance(stderr, float) and math.isfinite(stderr)
    return MetricScores(stderr=stderr if is_known else None, rows=rows)


def _whole(results: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the figures of the whole: of a group if there is one, else of the only task."""
    figures: Mapping[str, Any] = next(iter((results.get("groups") or results["results"]).values()))
    return figures


def _signature(results: Mapping[str, Any]) -> str:
    """Return what decides the figures: the task's version and examples, and lm-eval's version."""
    # A task without a version has a word in its place.
    numbers = (one for one in results["versions"].values() if not isinstance(one, str))
    versions = sorted({str(one) for one in numbers})
    shots = sorted({str(one) for one in results["n-shot"].values()})
    template = "yes" if results.get("chat_template_sha") else "no"
    parts = [f"version:{'+'.join(versions)}"] if versions else []
    parts += [f"examples:{'+'.join(shots)}", f"chat:{template}"]
    return "|".join([*parts, f"lm-eval:{results['lm_eval_version']}"])
