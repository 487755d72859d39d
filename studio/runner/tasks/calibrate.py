"""Run a calibration: a few real steps of a recipe on its own data, to measure speed and memory."""

import shutil
import statistics
from typing import Any

from studio.errors import TrainingError
from studio.methods import RECIPE_ADAPTER
from studio.protocols.events import Event, Failed, Finished, MetricsLogged, Started
from studio.protocols.run_dir import RunDir
from studio.protocols.tasks import TaskDir
from studio.recipe import yaml
from studio.recipe.dotted_keys import merge
from studio.runner.execution import ReportProgress, execute_run
from studio.training.stop_handler import StopHandler

WARM_UP_STEPS, MEASURED_STEPS = 3, 5
"""Warm-up steps, which are not counted, and measured steps."""


def calibrate(folder: TaskDir, params: dict[str, Any], report: ReportProgress) -> dict[str, Any]:
    """Train a recipe's first steps. Return the measurements; the model is discarded.

    Raises:
        TrainingError: the recipe fails, as it would in a run.

    """
    report("training a few steps", None)
    run = RunDir(folder.files / "run")
    # A previous try may have been killed.
    shutil.rmtree(run.root, ignore_errors=True)
    run.root.mkdir()
    recipe = RECIPE_ADAPTER.validate_python(
        merge(params["recipe"], _RECIPE_OVERRIDES), strict=False
    )
    run.recipe.write_text(yaml.dump(recipe), encoding="utf-8")
    run.job.write_text(params["job"], encoding="utf-8")
    try:
        execute_run(run.root, StopHandler())
        events = run.events.read()[0]
    finally:
        shutil.rmtree(run.root)
    last = events[-1]
    if isinstance(last, Failed):
        raise TrainingError(last.code, last.message, hint=last.hint)
    return _summarise(events)


_RECIPE_OVERRIDES: dict[str, Any] = {
    "optimisation": {
        "max_steps": WARM_UP_STEPS + MEASURED_STEPS,
        "max_minutes": None,
        # Puts the longest examples first, so that the step with the highest memory use is measured.
        "train_sampling_strategy": "group_by_length",
    },
    "evaluation": {"eval_steps": float(WARM_UP_STEPS + MEASURED_STEPS), "logging_steps": 1},
    "samples": {"prompts": 0},
    "checkpoints": {"save_minutes": None, "save_steps": None, "load_best_model_at_end": False},
    "early_stopping": {"early_stopping_patience": None},
}


def _summarise(events: list[Event]) -> dict[str, Any]:
    (started,) = (event for event in events if isinstance(event, Started))
    (finished,) = (event for event in events if isinstance(event, Finished))
    steps = [
        event
        for event in events
        if isinstance(event, MetricsLogged) and "step_seconds" in event.metrics
    ]
    warm = steps[WARM_UP_STEPS - 1]
    seconds = [event.metrics["step_seconds"] for event in steps[WARM_UP_STEPS:]]
    total_seconds = (finished.at - events[0].at).total_seconds()
    return {
        "steps": len(seconds),
        "tokens": steps[-1].tokens - warm.tokens,
        "step_seconds": statistics.fmean(seconds),
        "beside_seconds": total_seconds - finished.metrics["train_seconds"],
        "peak_memory_bytes": finished.metrics["peak_memory_bytes"],
        "resolved": started.resolved,
    }
