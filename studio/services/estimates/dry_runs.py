"""Dry runs: a task simulates one step of a recipe on fake tensors and counts their memory.

Everything that affects the result is hashed, so that a finished dry run is found again instantly.

"""

import json
from collections.abc import Iterator
from typing import Any

from sqlmodel import Session

from studio.db.states import TaskStatus
from studio.db.tasks import Task
from studio.errors import InvalidError
from studio.hardware import detect
from studio.methods import AnyRecipe
from studio.recipe.precision import PRECISIONS
from studio.services.datasets import versions
from studio.services.estimates import calibrations, memory
from studio.services.estimates.memory import MemoryBreakdown
from studio.services.estimates.reference_runs import DataReading
from studio.services.models import models
from studio.services.precision import recommendation
from studio.services.tasks import tasks
from studio.settings import Settings
from studio.weights.model_facts import ModelFacts

KIND = "measure"


def explain_unsupported(recipe: AnyRecipe) -> str:
    """Return why a dry run cannot simulate a recipe; empty if it can."""
    row, mode = recipe.adapter.quantised, PRECISIONS[recipe.precision]
    if row is not None:
        return f"A dry run cannot simulate {row.title} weights: quantising them needs their values."
    if mode.is_float8:
        return f"A dry run cannot simulate {mode.title}: its scaling depends on actual values."
    return ""


def enqueue(db: Session, recipe: AnyRecipe, settings: Settings) -> Task:
    """Queue a dry run of a recipe, or return one that is queued, running or done.

    Raises:
        InvalidError: the model or dataset does not exist, or a dry run cannot simulate the recipe.

    """
    if reason := explain_unsupported(recipe):
        raise InvalidError(reason, hint="Train a few steps to measure it.", param="precision")
    if finished := _finished_task(db, recipe):
        return finished
    params = calibrations.task_params(db, recipe, settings, "dry run")
    params["about"] = f"of {recipe.base_model}"
    return tasks.enqueue(db, KIND, task_subject(db, recipe), params)


def estimate_memory(db: Session, recipe: AnyRecipe, facts: ModelFacts) -> MemoryBreakdown | None:
    """Return the memory counted by a dry run plus process overhead; None without a dry run."""
    task = None if explain_unsupported(recipe) else _finished_task(db, recipe)
    if task is None:
        return None
    result, on_gpu = task.result, detect().device != "cpu"
    batch = memory.batch_shape(recipe, result)
    return memory.from_dry_run(recipe, facts, batch, result["at_peak"], on_gpu=on_gpu)


def load_readings(db: Session) -> Iterator[DataReading]:
    """Yield what dry runs found in the data they read, newest first."""
    for recipe, result in calibrations.load_results(db, KIND):
        yield DataReading(recipe=recipe, resolved=result)


def task_subject(db: Session, recipe: AnyRecipe) -> str:
    """Return a subject derived from everything that affects the memory of a step."""
    facts = json.dumps(_subject_facts(db, recipe), default=repr, sort_keys=True)
    return tasks.hashed_subject("step", facts)


def _finished_task(db: Session, recipe: AnyRecipe) -> Task | None:
    subject = task_subject(db, recipe)
    return tasks.latest(db, KIND, subject, lambda task: task.status is TaskStatus.SUCCEEDED)


def _subject_facts(db: Session, recipe: AnyRecipe) -> dict[str, Any]:
    optimisation = recipe.optimisation
    return {
        "model": (
            models.require(db, recipe.base_model),
            recommendation.load_model_facts(db, recipe.base_model),
        ),
        "method": recipe.method,
        "precision": recipe.precision,
        "adapter": recipe.adapter.model_dump(),
        "rows": versions.require(db, recipe.dataset).sha256,
        "data": recipe.data.model_dump(),
        # The seed selects the validation rows.
        "seed": optimisation.seed if recipe.data.validation_share else None,
        "optimizer": optimisation.optim,
        "batch": optimisation.per_device_train_batch_size,
        "adds_up": optimisation.gradient_accumulation_steps > 1,
        "is_checkpointed": optimisation.activation_checkpointing,
        "validation_batch": recipe.evaluation.per_device_eval_batch_size,
        "device": detect().device_name,
    }
