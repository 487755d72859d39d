"""Calibrations: a task trains a few real steps of a recipe as a basis for estimates."""

from collections.abc import Iterator
from typing import Any

from sqlmodel import Session, col, select

from studio.db.states import TaskStatus
from studio.db.tasks import Task
from studio.hardware import detect
from studio.methods import RECIPE_ADAPTER, AnyRecipe
from studio.protocols.run_dir import JobSpec
from studio.services.datasets import versions
from studio.services.estimates.reference_runs import ReferenceRun
from studio.services.models import models, remote_code_trust
from studio.services.tasks import tasks
from studio.settings import Settings

KIND = "calibrate"


def enqueue(db: Session, recipe: AnyRecipe, settings: Settings) -> Task:
    """Queue a calibration of a recipe, or return one that is queued or running.

    Raises:
        InvalidError: the model or dataset does not exist.

    """
    subject = tasks.hashed_subject("recipe", recipe.model_dump_json())
    return tasks.enqueue(db, KIND, subject, task_params(db, recipe, settings, "calibration"))


def task_params(db: Session, recipe: AnyRecipe, settings: Settings, name: str) -> dict[str, Any]:
    """Return the parameters of a task that trains a recipe without being a run.

    Raises:
        InvalidError: the model or dataset does not exist.

    """
    train, validation = versions.row_files(settings.datasets, versions.require(db, recipe.dataset))
    job = JobSpec(
        run_id=0,
        name=name,
        model=models.require(db, recipe.base_model),
        code=remote_code_trust.allowed_code_hash(models.find_by_name(db, recipe.base_model)),
        train=train,
        validation=validation,
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
    for recipe, result in load_results(db, KIND):
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
