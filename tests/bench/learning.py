"""What each method learns on rows that it held out, by adapter and number format, with three seeds.

The starter model trains on the sample data: `python -m tests.bench.learning [METHOD …]`. The worst
seed must reach what the method is expected to learn.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from studio import starter
from studio.methods import METHODS, METRICS
from studio.metrics import MetricSpec
from studio.protocols.events import Finished
from studio.protocols.run_dir import RunDir
from studio.starter.samples import SampleName
from tests.bench.measurement import Measurement
from tests.support import sample_rows
from tests.training import starter_pairs, tiny

PRECISIONS = ("fp32", "bf16", "fp16")
SEEDS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a method is to learn."""

    method: str
    sample: SampleName | Literal["pairs"]
    """A sample, or the starter's questions with their answers."""
    least: float
    """What its objective, or its metric, is to reach on validation rows."""
    adapter_rate: float
    full_rate: float
    steps: int = 150
    """By default about a third of what fits into a minute on two cores."""
    batch: int = 16
    metric: str = ""
    """What is measured, if not the method's objective."""

    @property
    def measures(self) -> MetricSpec:
        """The metric that says how much was learnt."""
        return METRICS[self.metric] if self.metric else METHODS[self.method].objective

    def rows(self) -> list[tiny.Row]:
        """Return the rows to train on."""
        return starter_pairs.read() if self.sample == "pairs" else sample_rows.imported(self.sample)


LESSONS = (
    Lesson("dpo", "comparisons", 0.6, 3e-3, 1e-4),
    Lesson("kto", "ratings", 0.25, 2e-3, 3e-4),
    Lesson("reward", "comparisons", 0.58, 1e-3, 1e-3, steps=300),
    Lesson("classify", "labels", 0.95, 1e-3, 3e-4),
    Lesson("regress", "numbers", 0.3, 1e-3, 3e-4),
    Lesson("tokens", "entities", 0.9, 1e-3, 3e-4),
    Lesson("embed", "pairs", 0.6, 3e-3, 5e-4, steps=40, batch=32, metric="eval_mrr_at_10"),
    Lesson("rerank", "pairs", 0.65, 1e-3, 5e-4, steps=300, batch=32, metric="eval_mrr_at_10"),
)


def measure(methods: tuple[str, ...] = ()) -> Iterator[Measurement]:
    """Train every cell; about two minutes for each method on two cores."""
    with TemporaryDirectory() as scratch:
        model = Path(scratch) / "model"
        model.mkdir()
        starter.write_model(model)
        for lesson in LESSONS:
            if not methods or lesson.method in methods:
                for adapter, precision in product(("lora", "full"), PRECISIONS):
                    yield from _measure(Path(scratch), model, lesson, adapter, precision)


def _measure(
    scratch: Path, model: Path, lesson: Lesson, adapter: str, precision: str
) -> Iterator[Measurement]:
    before, after = zip(
        *(_learn(scratch, model, lesson, adapter, precision, seed) for seed in SEEDS), strict=True
    )
    name = f"{lesson.method}, {adapter}, {precision}"
    yield Measurement(f"{name}: before, best seed", max(before), "")
    yield Measurement(f"{name}: after, worst seed", min(after), "")
    yield Measurement(f"{name}: after, best seed", max(after), "")
    yield Measurement(f"{name}: worst seed less the least", min(after) - lesson.least, "")


def _learn(
    scratch: Path, model: Path, lesson: Lesson, adapter: str, precision: str, seed: int
) -> tuple[float, float]:
    """Return what is measured before training, and its best value."""
    folder = scratch / f"{lesson.method}-{adapter}-{precision}-{seed}"
    return objectives(train(folder, model, lesson, adapter, precision, seed), lesson)


def train(
    folder: Path, model: Path, lesson: Lesson, adapter: str, precision: str, seed: int
) -> RunDir:
    """Train the starter model on a lesson's sample to the end of its steps."""
    writes_nothing = METHODS[lesson.method].recipe.outputs != "text"
    run = tiny.train(
        folder,
        model,
        lesson.rows(),
        **{"samples__max_new_tokens": 1} if writes_nothing else {},
        method=lesson.method,
        precision=precision,
        adapter__kind=adapter,
        data__validation_share=0.2,
        data__max_length=256,
        evaluation__eval_steps=0.25,
        evaluation__per_device_eval_batch_size=64,
        optimisation__seed=seed,
        optimisation__max_steps=lesson.steps,
        optimisation__per_device_train_batch_size=lesson.batch,
        optimisation__learning_rate=lesson.adapter_rate if adapter == "lora" else lesson.full_rate,
    )
    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    return run


def objectives(run: RunDir, lesson: Lesson) -> tuple[float, float]:
    """Return what is measured before training, and its best value."""
    measured = lesson.measures
    before, *after = tiny.metric_values(run, measured.key)
    return before, max(after) if measured.better == "higher" else min(after)


def main() -> None:
    # Runs speak of their steps; the figures are what is read here.
    figures, devnull = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    with os.fdopen(figures, "w") as told:
        for figure in measure(tuple(sys.argv[1:])):
            told.write(f"{figure}\n")
            told.flush()


if __name__ == "__main__":
    main()
