"""Calibrations: a task trains a few real steps of a recipe as a basis for estimates."""

import hashlib
from collections.abc import Iterator

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
    train, validation = versions.row_files(settings.datasets, versions.require(db, recipe.dataset))
    job = JobSpec(
        run_id=0,
        name="calibration",
        model=models.require(db, recipe.base_model),
        code=remote_code_trust.allowed_code_hash(models.find_by_name(db, recipe.base_model)),
        train=train,
        validation=validation,
        cache=settings.cache,
    )
    params = {"recipe": recipe.model_dump(mode="json"), "job": job.model_dump_json()}
    return tasks.enqueue(db, KIND, task_subject(recipe), params)


def task_subject(recipe: AnyRecipe) -> str:
    """Return a subject derived from the recipe, so that equal recipes share a calibration."""
    return f"recipe:{hashlib.sha256(recipe.model_dump_json().encode()).hexdigest()[:16]}"


def load_reference_runs(db: Session) -> Iterator[ReferenceRun]:
    """Yield this machine's calibrations as reference runs, newest first."""
    query = select(Task).where(Task.kind == KIND, Task.status == TaskStatus.SUCCEEDED)
    for task in db.exec(query.order_by(col(Task.id).desc())):
        result = task.result
        if result["resolved"].get("device_name") != detect().device_name:
            continue
        yield ReferenceRun(
            recipe=RECIPE_ADAPTER.validate_python(task.params["recipe"], strict=False),
            resolved=result["resolved"],
            steps=result["steps"],
            tokens=result["tokens"],
            step_seconds=result["step_seconds"],
            overhead_seconds=result["beside_seconds"],
            peak_bytes=result["peak_memory_bytes"],
            is_calibration=True,
        )
