"""Training speed: our runner and a bare TRL script, turn and turn about, in each precision.

Each run is a process of its own, as it is for users, and both train the same steps on the same
rows. Other work on the machine disturbs both alike, so the ratio of neighbours is what counts.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
from transformers.utils import logging as upstream_logging

from studio import starter
from studio.methods import RECIPE_ADAPTER
from studio.protocols.events import MetricsLogged
from studio.protocols.run_dir import JobSpec, RunDir
from studio.recipe import yaml
from tests.bench.measurement import Measurement

Mode = Literal["fp32", "bf16", "fp16"]

STEPS: dict[Mode, int] = {"fp32": 20, "bf16": 20, "fp16": 3}
"""Processors have no fast float16: a few steps of it must do."""

ROUNDS = 2
FIRST = 3
"Steps skipped of a run's speed: the machine warms up, and the longest rows come first."


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: how soon it was training, and how fast."""

    first_step_seconds: float
    step_seconds: float
    tokens_per_second: float
    loss: float


def measure() -> list[Measurement]:
    """Train in every mode, ours and bare by turns. Takes two to three minutes on two cores."""
    with TemporaryDirectory() as scratch:
        place = Path(scratch)
        _write_material(place)
        figures: list[Measurement] = []
        for mode in STEPS:
            figures += _compare(place, mode)
    return figures


def main() -> None:
    for figure in measure():
        sys.stdout.write(f"{figure}\n")


def _write_material(place: Path) -> None:
    """Write the starter's rows and model."""
    upstream_logging.disable_progress_bar()
    starter.write_rows(place)
    (place / "model").mkdir()
    starter.write_model(place / "model")


def _compare(place: Path, mode: Mode) -> list[Measurement]:
    # TRL trains float32 on a processor that is asked for float16, so there is no rival there.
    rival = mode != "fp16" or torch.cuda.is_available()
    rounds = range(ROUNDS if rival else 1)
    pairs = [(_ours(place, mode, i), _bare(place, mode) if rival else None) for i in rounds]
    ours = [one for one, _ in pairs]
    bare = [other for _, other in pairs if other is not None]
    figures = _figures(f"{mode}, ours", ours)
    if bare:
        ratios = [
            one.step_seconds / other.step_seconds for one, other in zip(ours, bare, strict=True)
        ]
        figures += _figures(f"{mode}, bare TRL", bare)
        figures.append(Measurement(f"{mode}, our step over theirs", statistics.median(ratios), "x"))
    return figures


def _figures(name: str, runs: list[Measured]) -> list[Measurement]:
    def middle(field: str) -> float:
        return float(statistics.median(getattr(run, field) for run in runs))

    return [
        Measurement(f"{name}: start to first step", middle("first_step_seconds"), "s"),
        Measurement(f"{name}: step", middle("step_seconds"), "s"),
        Measurement(f"{name}: real tokens", middle("tokens_per_second"), "tokens/s"),
        Measurement(f"{name}: last loss", middle("loss"), ""),
    ]


def _ours(place: Path, mode: Mode, number: int) -> Measured:
    run = _write_run(place, mode, number)
    began = time.time()
    _execute("studio.runner", str(run.root))
    points = [
        e for e in run.events.read()[0] if isinstance(e, MetricsLogged) and "loss" in e.metrics
    ]
    lines = [(e.at.timestamp(), e.tokens, e.metrics["loss"]) for e in points]
    return _measured(began, lines)


def _write_run(place: Path, mode: Mode, number: int) -> RunDir:
    run = RunDir(place / f"{mode}-{number}")
    run.root.mkdir()
    values = {
        "method": "sft",
        "base_model": "starter",
        "dataset": "starter",
        "precision": mode,
        "optimisation": {
            "learning_rate": 3e-3,
            "max_steps": STEPS[mode],
            "per_device_train_batch_size": 32,
        },
        "adapter": {"kind": "full"},
        "data": {"max_length": 256},
        "evaluation": {"eval_steps": float(STEPS[mode])},
        "samples": {"prompts": 0},
    }
    run.recipe.write_text(yaml.dump(RECIPE_ADAPTER.validate_python(values)), encoding="utf-8")
    spec = JobSpec(
        run_id=1,
        name="Bench",
        model=str(place / "model"),
        train=place / "train.jsonl",
        validation=place / "validation.jsonl",
    )
    run.job.write_text(spec.model_dump_json(), encoding="utf-8")
    return run


def _bare(place: Path, mode: Mode) -> Measured:
    began = time.time()
    arguments = (str(place / "model"), str(place / "train.jsonl"), str(STEPS[mode]), mode)
    said = _execute("tests.bench.trl_baseline", *arguments)
    points = [json.loads(line) for line in said.splitlines() if line.startswith('{"at"')]
    return _measured(began, [(point["at"], point["tokens"], point["loss"]) for point in points])


def _execute(module: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def _measured(began: float, lines: Sequence[tuple[float, float, float]]) -> Measured:
    times = [at for at, _, _ in lines][min(FIRST, len(lines) - 2) :]
    tokens = [count for _, count, _ in lines][min(FIRST, len(lines) - 2) :]
    steps = [later - sooner for sooner, later in pairwise(times)]
    return Measured(
        first_step_seconds=lines[0][0] - began,
        step_seconds=statistics.median(steps),
        tokens_per_second=(tokens[-1] - tokens[0]) / (times[-1] - times[0]),
        loss=lines[-1][2],
    )


if __name__ == "__main__":
    main()
