"""Read what lm-eval found: its figures, and how it scored each row."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from studio.errors import UnavailableError
from studio.evaluation.benchmarks import HarnessMetric
from studio.protocols.benchmarks import BenchmarkResult, MetricScores
from studio.runner.tasks.benchmarks.harness_model import HarnessModel

_SAMPLES = "samples_"


def read(
    folder: Path, task: str, metrics: Sequence[HarnessMetric], model: HarnessModel
) -> BenchmarkResult:
    """Return the metrics of a task, or of a group of tasks, that lm-eval wrote into a folder.

    Raises:
        UnavailableError: it has not scored a single row.

    """
    file = next(folder.rglob("results_*.json"), None)
    results = json.loads(file.read_text("utf-8")) if file else {}
    samples = list(_read_samples(folder))
    figures = (results.get("groups", {}) | results.get("results", {})).get(task, {})
    scores = {one.metric.key: _scores(one, figures, samples) for one in metrics}
    if not all(one.rows for one in scores.values()):
        raise UnavailableError(
            "lm-eval has not scored any row.", hint="The log of the task shows what it did."
        )
    signature = _signature(results, has_template=model.template is not None)
    return BenchmarkResult(scores=scores, signature=signature, computed_in=model.computed_in)


def _read_samples(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the task and the content of each sample."""
    for file in sorted(folder.rglob(f"{_SAMPLES}*.jsonl")):
        task = file.stem.removeprefix(_SAMPLES).rpartition("_")[0]
        with file.open(encoding="utf-8") as lines:
            yield from ((task, json.loads(line)) for line in lines)


def _scores(
    metric: HarnessMetric, figures: Mapping[str, Any], samples: Sequence[tuple[str, dict[str, Any]]]
) -> MetricScores:
    name, _, answers = metric.name.partition(",")
    counted = {
        f"{task} {sample['doc_id']}": metric.count(sample[name])
        for task, sample in samples
        if sample["filter"] == answers and name in sample
    }
    # A model whose scores are not finite numbers has none for a row.
    rows = {row: one for row, one in counted.items() if all(map(math.isfinite, one))}
    stderr = figures.get(f"{name}_stderr,{answers}")
    is_known = isinstance(stderr, float) and math.isfinite(stderr)
    return MetricScores(stderr=stderr if is_known else None, rows=rows)


def _signature(results: Mapping[str, Any], *, has_template: bool) -> str:
    """Return what decides the figures: the task's version, its examples, the chat, and lm-eval."""
    # A task without a version has a word in its place.
    numbers = (one for one in results["versions"].values() if not isinstance(one, str))
    versions = sorted({str(one) for one in numbers})
    shots = sorted({str(one) for one in results["n-shot"].values()})
    parts = [f"version:{'+'.join(versions)}"] if versions else []
    parts += [f"examples:{'+'.join(shots)}", f"chat:{'yes' if has_template else 'no'}"]
    return "|".join([*parts, f"lm-eval:{results['lm_eval_version']}"])
