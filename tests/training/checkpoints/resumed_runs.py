"""Runs cut off and taken up again, and what of them must be equal."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open

from studio.protocols.events import Finished, MetricsLogged, Resumed
from studio.protocols.run_dir import JobSpec, RunDir
from tests.training import tiny

SAVED: dict[str, Any] = {
    "checkpoints__save_steps": 1,
    "checkpoints__save_total_limit": 100,
    "checkpoints__keep_after_success": True,
}
"""A checkpoint of every step, kept for good: any of them can be gone on from."""

STEPS: dict[str, Any] = {
    "optimisation__max_steps": 12,
    "optimisation__gradient_accumulation_steps": 2,
    "optimisation__per_device_train_batch_size": 3,
    "evaluation__eval_steps": 3,
    "evaluation__logging_steps": 2,
}
"""Five steps to an epoch, the last of them of a rest; every second step is logged."""

LORA: dict[str, Any] = {
    "precision": "bf16",
    "adapter__kind": "lora",
    "adapter__lora_dropout": 0.2,
}
"""With dice in every step."""

_CLOCKS = {"tokens_per_second", "step_seconds", "peak_memory_bytes", "train_seconds"}


def interrupt_run(run: RunDir, step: int, to: Path) -> RunDir:
    """Return what a process killed after a step would have left, about to be taken up again."""
    shutil.copytree(run.root, to)
    left = RunDir(to)
    shutil.rmtree(left.artifacts)
    for folder in left.checkpoints.iterdir():
        if int(folder.name.removeprefix("checkpoint-")) > step:
            shutil.rmtree(folder)
    return resume_run(left)


def resume_run(run: RunDir) -> RunDir:
    """Tell the next attempt to go on, as the worker does."""
    spec = JobSpec.read(run)
    again = spec.model_copy(update={"attempt": spec.attempt + 1, "resume": True})
    run.job.write_text(again.model_dump_json(), encoding="utf-8")
    return run


def checkpoints(run: RunDir) -> list[str]:
    return sorted(path.name for path in run.checkpoints.iterdir())


def bits(run: RunDir) -> dict[str, bytes]:
    """Return the files of the model itself."""
    return {path.name: path.read_bytes() for path in run.artifacts.glob("*.safetensors")}


def formats(file: Path) -> set[str]:
    with safe_open(file, "pt") as opened:
        return {opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118 -- no mapping


def result(run: RunDir) -> Mapping[str, float]:
    """Return the numbers that a run ended with, but for what a clock or the machine says."""
    return _timeless(tiny.events_of(run, Finished)[-1].metrics)


def curve(run: RunDir) -> dict[int, dict[str, float]]:
    """Return all numbers by step; of a step trained again, those told last."""
    found: dict[int, dict[str, float]] = {}
    for event in tiny.events_of(run, MetricsLogged):
        numbers = {**_timeless(event.metrics), "tokens": event.tokens, "epoch": event.epoch}
        found.setdefault(event.step, {}).update(numbers)
    return found


def resumed_at(run: RunDir) -> list[tuple[int, int]]:
    return [(event.attempt, event.step) for event in tiny.events_of(run, Resumed)]


def _timeless(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name not in _CLOCKS}
