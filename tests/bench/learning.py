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

from studio import starter
from studio.methods import METHODS
from studio.protocols.events import Finished, MetricsLogged
from studio.runner.execution import execute_run
from studio.starter.samples import SampleName
from studio.training.stop_handler import StopHandler
from tests.bench.measurement import Measurement
from tests.support import sample_rows
from tests.training import tiny

PRECISIONS = ("fp32", "bf16", "fp16")
SEEDS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a method is to learn."""

    method: str
    sample: SampleName
    least: float
    """What its objective is to reach on validation rows."""
    adapter_rate: float
    full_rate: float
    steps: int = 150
    """By default about a third of what fits into a minute on two cores."""


LESSONS = (
    Lesson("dpo", "comparisons", 0.6, 3e-3, 1e-4),
    Lesson("kto", "ratings", 0.25, 2e-3, 3e-4),
    Lesson("reward", "comparisons", 0.58, 1e-3, 1e-3, steps=300),
    Lesson("classify", "labels", 0.95, 1e-3, 3e-4),
    Lesson("regress", "numbers", 0.3, 1e-3, 3e-4),
    Lesson("tokens", "entities", 0.9, 1e-3, 3e-4),
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
    """Return the objective before training, and of the best weights."""
    spec = METHODS[lesson.method]
    writes_nothing = {"samples__max_new_tokens": 1} if spec.recipe.outputs != "text" else {}
    run = tiny.write_run(
        scratch / f"{lesson.method}-{adapter}-{precision}-{seed}",
        model,
        sample_rows.imported(lesson.sample),
        **writes_nothing,
        method=lesson.method,
        precision=precision,
        adapter__kind=adapter,
        data__validation_share=0.2,
        data__max_length=256,
        evaluation__eval_steps=0.25,
        evaluation__per_device_eval_batch_size=64,
        optimisation__seed=seed,
        optimisation__max_steps=lesson.steps,
        optimisation__per_device_train_batch_size=16,
        optimisation__learning_rate=lesson.adapter_rate if adapter == "lora" else lesson.full_rate,
    )
    execute_run(run.root, StopHandler())
    events = run.events.read()[0]
    assert isinstance(events[-1], Finished), events[-1]
    key = spec.objective.key
    logged = [event.metrics for event in events if isinstance(event, MetricsLogged)]
    values = [metrics[key] for metrics in logged if key in metrics]
    best = max if spec.objective.better == "higher" else min
    return values[0], best(values[1:])


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
