"""Fine-tuning jobs of the OpenAI API: runs requested through it.

A job is a run: `ftjob-7` is run 7. It is held until its files have been read as it needs them,
which takes a task if a file is large or the job has a validation file.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlmodel import Session, col, select

from studio.db.states import DatasetStatus, RunStatus, TaskStatus
from studio.db.tables import Dataset, DatasetVersion, OpenAIJob, Run
from studio.db.tasks import Task
from studio.errors import InvalidError, NotFoundError, StudioError
from studio.intake.conversion.job import CONVERSION_JOB_ADAPTER
from studio.intake.files.limits import Limits
from studio.intake.mapping import Mapping as Reading
from studio.intake.mapping import Split
from studio.methods import METHODS, RECIPE_ADAPTER, AnyRecipe, model_compatibility
from studio.recipe.dotted_keys import merge
from studio.services import experiments
from studio.services.datasets import dataset_builds, datasets, versions
from studio.services.estimates import estimates
from studio.services.models import models
from studio.services.openai import file_objects, model_names
from studio.services.precision import recommendation
from studio.services.runs import runs, states

_ID = re.compile(r"ftjob-(\d{1,18})")
_PRESETS = {"lora": "lora", "full": "full"}
_CANCELLED_MESSAGE = "Reading the file was cancelled."
_BAD_FILE_CODE = "bad_row"
"""The failure code for problems with a job's files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A request for a job."""

    model: str
    training_file: str
    validation_file: str | None = None
    suffix: str = ""
    seed: int | None = None
    epochs: int | None = None
    """None uses the studio's default; so do the next two."""
    batch_size: int | None = None
    learning_rate_multiplier: float | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Recipe overrides, nested like the recipe."""
    pairs: Mapping[str, str] = field(default_factory=dict)
    """Its metadata."""


def create(db: Session, folder: Path, request: JobRequest, limits: Limits) -> Run:
    """Queue a run for a job; it is held until its files have been read.

    Raises:
        InvalidError: A file or the model cannot be used, or the recipe cannot run here.

    """
    training = _require_file(db, request.training_file, "training_file")
    validation = (
        _require_file(db, request.validation_file, "validation_file")
        if request.validation_file
        else None
    )
    recipe = _build_recipe(db, request, training)
    experiment = experiments.create(db, request.suffix or training.name, recipe)
    run = Run(
        experiment_id=experiment.id or 0,
        name=experiment.name,
        recipe=experiment.recipe,
        precision_reason=experiment.precision_reason,
        is_held=True,
    )
    db.add(run)
    db.flush()
    states.record_event(db, run, "queued")
    job = OpenAIJob(
        run_id=run.id or 0,
        suffix=request.suffix,
        pairs=dict(request.pairs),
        training_id=training.id or 0,
        validation_id=validation.id if validation else None,
        is_validating=True,
    )
    db.add(job)
    _advance(db, folder, job, limits)
    return run


def get(db: Session, job_id: str) -> Run:
    """Return the run of a job.

    Raises:
        NotFoundError: There is none.

    """
    match = _ID.fullmatch(job_id)
    run = db.get(Run, int(match[1])) if match else None
    if run is None or run.deleted_at is not None:
        error = NotFoundError(f"Could not find fine tune: {job_id[:100]}.", param="fine_tune_id")
        error.code = "fine_tune_not_found"
        raise error
    return run


def get_job(db: Session, run: Run) -> OpenAIJob:
    """Return the request of a job; for a run started elsewhere, what is known of it."""
    job = db.get(OpenAIJob, run.id)
    if job is not None:
        return job
    version = versions.find_for_run(db, run)
    return OpenAIJob(run_id=run.id or 0, training_id=version.dataset_id if version else 0)


def list_jobs(
    db: Session, *, limit: int, before: int | None = None, pairs: Mapping[str, str]
) -> list[Run]:
    """Return the jobs with this metadata, newest first."""
    query = select(Run).where(col(Run.deleted_at).is_(None)).order_by(col(Run.id).desc())
    if before is not None:
        query = query.where(col(Run.id) < before)
    if pairs:
        query = query.join(OpenAIJob, col(OpenAIJob.run_id) == col(Run.id))
    for name, value in pairs.items():
        query = query.where(col(OpenAIJob.pairs)[name].as_string() == value)
    return list(db.exec(query.limit(limit)))


def recommended_learning_rate(db: Session, recipe: AnyRecipe) -> float:
    """Return the recommended learning rate for a model and adapter kind.

    It comes from the matching preset, and OpenAI's multiplier applies to it.
    """
    model = models.find_by_name(db, recipe.base_model)
    name = "quick" if model and model.kind == "starter" else _PRESETS[recipe.adapter.kind]
    presets = METHODS[recipe.method].presets
    preset = next((one for one in presets if one.name == name), presets[0])
    own = {"method": recipe.method, "base_model": recipe.base_model, "dataset": recipe.dataset}
    values = merge(own, preset.values)
    rate: float = RECIPE_ADAPTER.validate_python(values).optimisation.learning_rate
    return rate


def on_files_read(db: Session, folder: Path, task: Task) -> None:
    """Advance the jobs that waited for a file which a task has read or failed to read."""
    conversion = CONVERSION_JOB_ADAPTER.validate_python(task.params["reading"])
    dataset_id = int(Path(task.params["home"]).name)
    waiting = select(OpenAIJob).where(
        col(OpenAIJob.is_validating),
        (col(OpenAIJob.training_id) == dataset_id) | (col(OpenAIJob.validation_id) == dataset_id),
    )
    for job in db.exec(waiting.order_by(col(OpenAIJob.run_id))).all():
        run = runs.get(db, job.run_id)
        if run.status is not RunStatus.QUEUED:
            continue
        try:
            if task.status is not TaskStatus.SUCCEEDED:
                raise InvalidError(task.error_message or _CANCELLED_MESSAGE, hint=task.error_hint)
            _advance(db, folder, job, conversion.limits, conversion.mapping)
        except StudioError as error:
            _fail_run(db, run, error)


def _advance(
    db: Session, folder: Path, job: OpenAIJob, limits: Limits, read_mapping: Reading | None = None
) -> None:
    """Release a job's run if its rows are ready; otherwise queue reading them.

    `read` is the mapping with which a task has just read a file.

    Raises:
        InvalidError: Its files have no usable rows, or the recipe cannot run here.

    """
    training = datasets.get(db, job.training_id)
    validation = datasets.get(db, job.validation_id) if job.validation_id else None
    files = [dataset for dataset in (training, validation) if dataset is not None]
    if any(dataset.status is DatasetStatus.BUILDING for dataset in files):
        return
    for dataset in files:
        datasets.require(db, dataset.name)
    required_mapping = _required_mapping(versions.current_mapping(db, job.training_id), validation)
    version = _find_version(db, training, required_mapping, read_mapping)
    if version is not None:
        versions.activate(db, version.dataset_id, version.number)
        _release_run(db, job, version)
        return
    before = dataset_builds.latest_task(db, job.training_id)
    if before is None or before.status.is_final:
        dataset_builds.enqueue(db, folder, job.training_id, required_mapping, limits)


def _release_run(db: Session, job: OpenAIJob, version: DatasetVersion) -> None:
    run = runs.get(db, job.run_id)
    runs.check(db, run.recipe)
    run.estimate = estimates.estimate_record(db, run.recipe)
    run.dataset_version_id, run.is_held = version.id, False
    job.is_validating = False


def _required_mapping(mapping: Reading, validation: Dataset | None) -> Reading:
    """Return the mapping a job needs: the file's own, but validated on the other file."""
    if validation is None and mapping.split.kind != "dataset":
        return mapping
    split = Split(kind="dataset", dataset=str(validation.id)) if validation else Split()
    return mapping.model_copy(update={"split": split})


def _find_version(
    db: Session, training: Dataset, required_mapping: Reading, read_mapping: Reading | None
) -> DatasetVersion | None:
    """Return the version with the required mapping, if there is one."""
    current = versions.current(db, training)
    if read_mapping == required_mapping:
        return current  # If its rows existed before, its mapping is the earlier one.
    candidates = [*([current] if current else []), *versions.list_versions(db, training.id or 0)]
    return next(
        (
            version
            for version in candidates
            if Reading.model_validate(version.mapping) == required_mapping
        ),
        None,
    )


def _fail_run(db: Session, run: Run, error: StudioError) -> None:
    run.error_code, run.error_message, run.error_hint = _BAD_FILE_CODE, error.message, error.hint
    details = {"code": _BAD_FILE_CODE, "message": error.message, "hint": error.hint}
    states.move(db, run, RunStatus.FAILED, details)


def _require_file(db: Session, file_id: str, param: str) -> Dataset:
    try:
        dataset = file_objects.get(db, file_id)
        status, problem = file_objects.status(db, dataset)
    except NotFoundError as error:
        raise _unusable_file_error(f"{param} {file_id[:100]} does not exist.", param) from error
    if status == "error":
        raise _unusable_file_error(f"{param} {file_id} cannot be used: {problem}", param)
    return dataset


def _unusable_file_error(message: str, param: str) -> InvalidError:
    error = InvalidError(message, param=param)
    error.code = f"invalid_{param}"
    return error


def _check_model(db: Session, name: str) -> None:
    try:
        facts = recommendation.load_model_facts(db, name)
        model_compatibility.refuse_untrainable(facts.kind, facts.family, "model")
    except InvalidError as error:
        error.param, error.code = "model", "model_not_found"
        raise


def _build_recipe(db: Session, request: JobRequest, training: Dataset) -> AnyRecipe:
    """Return the recipe of a request. `changes` overrides everything else."""
    base = model_names.base_model_name(db, request.model)
    _check_model(db, base)
    values = {
        "base_model": base,
        "dataset": training.name,
        "checkpoints": {"keep_after_success": True},
    }
    try:
        recipe = runs.build_recipe(merge(values, request.changes))
    except InvalidError as error:
        error.param = f"x_studio.{error.param}"
        raise
    rate = recommended_learning_rate(db, recipe) * (request.learning_rate_multiplier or 1.0)
    optimisation = {
        "num_train_epochs": request.epochs,
        "per_device_train_batch_size": request.batch_size,
        "learning_rate": rate,
        "seed": request.seed,
    }
    given = {name: value for name, value in optimisation.items() if value is not None}
    return runs.with_overrides(recipe, merge({"optimisation": given}, request.changes))
