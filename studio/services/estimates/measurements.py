"""Measurements of a recipe by a task, as a basis for estimates: calibrations and dry runs.

A calibration trains a few real steps. A dry run simulates one step on fake tensors and counts their
memory. Everything that affects its result is hashed, so that a finished one is found again
instantly.
"""

import json
from collections.abc import Iterator
from typing import Any

from sqlmodel import Session, col, select

from studio.db.states import TaskStatus
from studio.db.tasks import Task
from studio.errors import InvalidError
from studio.hardware import detect
from studio.methods import RECIPE_ADAPTER, AnyRecipe
from studio.protocols.run_dir import JobSpec
from studio.recipe.base import Teacher
from studio.recipe.precision import PRECISIONS
from studio.services.datasets import versions
from studio.services.estimates import judge_memory, memory
from studio.services.estimates.memory import MemoryBreakdown
from studio.services.estimates.reference_runs import DataReading, ReferenceRun
from studio.services.models import models, reward_models
from studio.services.precision import recommendation
from studio.services.tasks import tasks
from studio.settings import Settings
from studio.weights.model_facts import ModelFacts

CALIBRATION_KIND = "calibrate"


def enqueue_calibration(db: Session, recipe: AnyRecipe, settings: Settings) -> Task:
    """Queue a calibration of a recipe, or return one that is queued or running.

    Raises:
        InvalidError: the model or dataset does not exist.

    """
    subject = tasks.hashed_subject("recipe", recipe.model_dump_json())
    return tasks.enqueue(
        db, CALIBRATION_KIND, subject, task_params(db, recipe, settings, "calibration")
    )


def task_params(db: Session, recipe: AnyRecipe, settings: Settings, name: str) -> dict[str, Any]:
    """Return the parameters of a task that trains a recipe without being a run.

    Raises:
        InvalidError: the model or dataset does not exist.

    """
    train, validation = versions.row_files(settings.datasets, versions.require(db, recipe.dataset))
    job = JobSpec(
        run_id=0,
        name=name,
        **models.job_fields(db, recipe),
        reward_models=reward_models.judges_for(db, settings.runs, recipe),
        train=train,
        validation=validation,
        python_graders=settings.python_graders,
        cache=settings.cache,
    )
    return {"recipe": recipe.model_dump(mode="json"), "job": job.model_dump_json()}


def load_results(db: Session, kind: str) -> Iterator[tuple[AnyRecipe, dict[str, Any]]]:
    """Yield the recipes and results of the tasks of a kind that have succeeded, newest first."""
    query = select(Task).where(Task.kind == kind, Task.status == TaskStatus.SUCCEEDED)
    for task in db.exec(query.order_by(col(Task.id).desc())):
        yield RECIPE_ADAPTER.validate_python(task.params["recipe"], strict=False), task.result


def load_reference_runs(db: Session) -> Iterator[ReferenceRun]:
    """Yield this machine's calibrations as reference runs, newest first."""
    for recipe, result in load_results(db, CALIBRATION_KIND):
        if result["resolved"].get("device_name") != detect().device_name:
            continue
        yield ReferenceRun(
            recipe=recipe,
            resolved=result["resolved"],
            steps=result["steps"],
            tokens=result["tokens"],
            step_seconds=result["step_seconds"],
            overhead_seconds=result["beside_seconds"],
            peak_bytes=result["peak_memory_bytes"],
            is_calibration=True,
        )


DRY_RUN_KIND = "measure"


def explain_unsupported(recipe: AnyRecipe) -> str:
    """Return why a dry run cannot simulate a recipe; empty if it can."""
    row, mode = recipe.adapter.quantised, PRECISIONS[recipe.precision]
    if row is not None:
        return f"A dry run cannot simulate {row.title} weights: quantising them needs their values."
    if mode.is_float8:
        return f"A dry run cannot simulate {mode.title}: its scaling depends on actual values."
    if recipe.optimisation.activation_offloading:
        return "A dry run cannot simulate activation offloading: it counts a single device."
    return ""


def enqueue_dry_run(db: Session, recipe: AnyRecipe, settings: Settings) -> Task:
    """Queue a dry run of a recipe, or return one that is queued, running or done.

    Raises:
        InvalidError: the model or dataset does not exist, or a dry run cannot simulate the recipe.

    """
    if reason := explain_unsupported(recipe):
        raise InvalidError(reason, hint="Train a few steps to measure it.", param="precision")
    if finished := _finished_task(db, recipe):
        return finished
    params = task_params(db, recipe, settings, "dry run")
    params["about"] = f"of {recipe.base_model}"
    return tasks.enqueue(db, DRY_RUN_KIND, task_subject(db, recipe), params)


def estimate_memory(db: Session, recipe: AnyRecipe, facts: ModelFacts) -> MemoryBreakdown | None:
    """Return the memory counted by a dry run plus process overhead; None without a dry run."""
    task = None if explain_unsupported(recipe) else _finished_task(db, recipe)
    if task is None:
        return None
    result, on_gpu = task.result, detect().device != "cpu"
    batch = memory.batch_shape(recipe, result)
    judges = judge_memory.load(db, recipe)
    if judges is None:
        return None
    counted = result["at_peak"]
    return memory.from_dry_run(recipe, facts, batch, counted, on_gpu=on_gpu, judges=judges)


def load_readings(db: Session) -> Iterator[DataReading]:
    """Yield what dry runs found in the data they read, newest first."""
    for recipe, result in load_results(db, DRY_RUN_KIND):
        yield DataReading(recipe=recipe, resolved=result)


def task_subject(db: Session, recipe: AnyRecipe) -> str:
    """Return a subject derived from everything that affects the memory of a step."""
    facts = json.dumps(_subject_facts(db, recipe), default=repr, sort_keys=True)
    return tasks.hashed_subject("step", facts)


def _finished_task(db: Session, recipe: AnyRecipe) -> Task | None:
    subject = task_subject(db, recipe)
    return tasks.latest(db, DRY_RUN_KIND, subject, lambda task: task.status is TaskStatus.SUCCEEDED)


def _subject_facts(db: Session, recipe: AnyRecipe) -> dict[str, Any]:
    optimisation = recipe.optimisation
    return {
        "model": (
            models.require(db, recipe.base_model),
            recommendation.load_model_facts(db, recipe.base_model),
        ),
        "method": recipe.method,
        "precision": recipe.precision,
        # Without defaults: a new setting leaves the subjects of earlier recipes as they are.
        "adapter": (recipe.adapter.kind, recipe.adapter.model_dump(exclude_defaults=True)),
        "rows": versions.require(db, recipe.dataset).sha256,
        "data": recipe.data.model_dump(exclude_defaults=True),
        # The seed selects the validation rows.
        "seed": optimisation.seed if recipe.data.validation_share else None,
        "optimizer": optimisation.optim,
        **recipe.model.model_dump(exclude_defaults=True),
        "batch": optimisation.per_device_train_batch_size,
        "adds_up": optimisation.gradient_accumulation_steps > 1,
        "is_checkpointed": optimisation.activation_checkpointing,
        # Named only if set: subjects of earlier recipes stay as they are.
        **({"teacher": _teacher_facts(db, recipe.teacher)} if recipe.teacher else {}),
        **({"reward_models": [*recipe.reward_models]} if recipe.reward_models else {}),
        **({"is_offloaded": True} if optimisation.activation_offloading else {}),
        **({"texts": (recipe.negatives, recipe.mini_batch)} if recipe.reads_pairs else {}),
        "validation_batch": recipe.evaluation.per_device_eval_batch_size,
        "device": detect().device_name,
    }


def _teacher_facts(db: Session, teacher: Teacher) -> tuple[object, ...]:
    facts = recommendation.load_model_facts(db, teacher.name)
    return models.require(db, teacher.name), facts, teacher.dtype
