"""Training speed: our runner and a bare TRL script, turn and turn about, for each method.

Each run is a process of its own, as it is for users, and both train the same steps on the same
rows. Other work on the machine disturbs both alike, so the ratio of neighbours is what counts.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from transformers.utils import logging as upstream_logging

from studio import starter
from studio.methods import RECIPE_ADAPTER
from studio.protocols.events import MetricsLogged
from studio.protocols.run_dir import JobSpec, RunDir
from studio.recipe import yaml
from studio.starter import samples
from tests.bench.measurement import Measurement
from tests.support import sample_rows

Mode = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True, slots=True)
class Cell:
    """What both train."""

    method: str
    mode: Mode
    adapter: Literal["full", "lora"]
    steps: int
    batch: int

    @property
    def name(self) -> str:
        return f"{self.method}, {self.mode}"


CELLS = (
    Cell("sft", "fp32", "full", 20, 32),
    Cell("sft", "bf16", "full", 20, 32),
    # Processors have no fast float16: a few steps of it must do.
    Cell("sft", "fp16", "full", 3, 32),
    Cell("dpo", "fp32", "lora", 20, 16),
    Cell("kto", "fp32", "lora", 20, 16),
    Cell("reward", "fp32", "lora", 20, 16),
)
ROUNDS = 2
VALIDATION_ROWS = 16
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
    """Train in every cell, ours and bare by turns. Takes about five minutes on two cores."""
    with TemporaryDirectory() as scratch:
        place = Path(scratch)
        _write_material(place)
        figures: list[Measurement] = []
        for cell in CELLS:
            figures += _compare(place, cell)
    return figures


def main() -> None:
    for figure in measure():
        sys.stdout.write(f"{figure}\n")


def _write_material(place: Path) -> None:
    """Write the starter's model, and the rows of each method: for ours, and for TRL."""
    upstream_logging.disable_progress_bar()
    starter.write_rows(place)
    (place / "model").mkdir()
    starter.write_model(place / "model")
    for method, sample in SAMPLES_OF.items():
        ours = sample_rows.imported(sample)
        _write_rows(_ours_rows(place, method), ours)
        _write_rows(_validation_rows(place, method), ours[:VALIDATION_ROWS])
        _write_rows(_bare_rows(place, method), map(_as_conversation, sample_rows.read(sample)))


SAMPLES_OF: dict[str, samples.SampleName] = {
    "dpo": "comparisons",
    "kto": "ratings",
    "reward": "comparisons",
}


def _ours_rows(place: Path, method: str) -> Path:
    return place / (f"{method}.jsonl" if method in SAMPLES_OF else "train.jsonl")


def _validation_rows(place: Path, method: str) -> Path:
    return place / (f"{method}-validation.jsonl" if method in SAMPLES_OF else "validation.jsonl")


def _bare_rows(place: Path, method: str) -> Path:
    return place / (f"{method}-trl.jsonl" if method in SAMPLES_OF else "train.jsonl")


def _write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def _as_conversation(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose prompt and answers are messages."""
    roles = {"prompt": "user"} | dict.fromkeys(("chosen", "rejected", "completion"), "assistant")
    return {
        key: sample_rows.said(roles[key], row[key]) if key in roles else row[key] for key in row
    }


def _compare(place: Path, cell: Cell) -> list[Measurement]:
    # TRL trains float32 on a processor that is asked for float16, so there is no rival there.
    rival = cell.mode != "fp16" or torch.cuda.is_available()
    rounds = range(ROUNDS if rival else 1)
    pairs = [(_ours(place, cell, i), _bare(place, cell) if rival else None) for i in rounds]
    ours = [one for one, _ in pairs]
    bare = [other for _, other in pairs if other is not None]
    figures = _figures(f"{cell.name}, ours", ours)
    if bare:
        ratios = [
            one.step_seconds / other.step_seconds for one, other in zip(ours, bare, strict=True)
        ]
        figures += _figures(f"{cell.name}, bare TRL", bare)
        name = f"{cell.name}, our step over theirs"
        figures.append(Measurement(name, statistics.median(ratios), "x"))
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


def _ours(place: Path, cell: Cell, number: int) -> Measured:
    run = _write_run(place, cell, number)
    began = time.time()
    _execute("studio.runner", str(run.root))
    points = [
        e for e in run.events.read()[0] if isinstance(e, MetricsLogged) and "loss" in e.metrics
    ]
    lines = [(e.at.timestamp(), e.tokens, e.metrics["loss"]) for e in points]
    return _measured(began, lines)


def _write_run(place: Path, cell: Cell, number: int) -> RunDir:
    run = RunDir(place / f"{cell.method}-{cell.mode}-{number}")
    run.root.mkdir()
    values = {
        "method": cell.method,
        "base_model": "starter",
        "dataset": "starter",
        "precision": cell.mode,
        "optimisation": {
            "learning_rate": 3e-3,
            "num_train_epochs": 1.0,
            "max_steps": cell.steps,
            "per_device_train_batch_size": cell.batch,
            "train_sampling_strategy": "group_by_length" if cell.method == "sft" else "random",
        },
        "adapter": {"kind": cell.adapter},
        "data": {"max_length": 256},
        "evaluation": {"eval_steps": float(cell.steps)},
    }
    if cell.method == "reward":
        # The script has one learning rate.
        values["scoring"] = {"head_lr_ratio": 1.0}
    else:
        values["samples"] = {"prompts": 0}
    run.recipe.write_text(yaml.dump(RECIPE_ADAPTER.validate_python(values)), encoding="utf-8")
    spec = JobSpec(
        run_id=1,
        name="Bench",
        model=str(place / "model"),
        train=_ours_rows(place, cell.method),
        validation=_validation_rows(place, cell.method),
    )
    run.job.write_text(spec.model_dump_json(), encoding="utf-8")
    return run


def _bare(place: Path, cell: Cell) -> Measured:
    began = time.time()
    rows = _bare_rows(place, cell.method)
    numbers = (str(cell.steps), cell.mode, str(cell.batch))
    arguments = (cell.method, str(place / "model"), str(rows), *numbers)
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
