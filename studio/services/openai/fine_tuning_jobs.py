"""Fine-tuning jobs of the OpenAI API: runs requested through it, their events and checkpoints.

A job is a run: `ftjob-7` is run 7. It is held until its files have been read as it needs them,
which takes a task if a file is large or the job has a validation file. A run's history and its
metrics form one list of events, newest first; an event's id is the paging cursor.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from sqlmodel import Session, col, select

from studio.db.states import DatasetStatus, RunStatus, TaskStatus
from studio.db.tables import Dataset, DatasetVersion, Metric, OpenAIJob, Run, RunEvent
from studio.db.tasks import Task
from studio.errors import InvalidError, NotFoundError, StudioError, UnavailableError
from studio.intake.conversion.job import CONVERSION_JOB_ADAPTER
from studio.intake.files.limits import Limits
from studio.intake.mapping import Mapping as Reading
from studio.intake.mapping import Split
from studio.methods import DEFAULT_METHOD, METHODS, RECIPE_ADAPTER, AnyRecipe, model_compatibility
from studio.recipe.dotted_keys import merge
from studio.services import experiments
from studio.services.datasets import dataset_builds, datasets, versions
from studio.services.estimates import estimates
from studio.services.models import models
from studio.services.openai import file_objects, model_names
from studio.services.openai.file_objects import METRIC_NAMES
from studio.services.precision import recommendation
from studio.services.runs import artifacts, run_events, runs, states
from studio.services.trackers import trackers
from studio.trackers.contract import TrackerOptions
from studio.trackers.table import require_installed

_EVENT_ID = re.compile(r"ftevent-\d{1,18}-([hs])(\d{1,18})")
_LEVELS: dict[str, Literal["warn", "error"]] = {"failed": "error", "alarm": "warn"}


_LABELS = {
    "train_mean_reward": "training reward",
    "valid_mean_reward": "validation reward",
    "train_loss": "training loss",
    "valid_loss": "validation loss",
}
"""What the message of an event calls the metrics it names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """An event of a job."""

    id: str
    at: datetime
    message: str
    level: Literal["info", "warn", "error"] = "info"
    type: Literal["message", "metrics"] = "message"
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCheckpoint:
    """A step at which a run's model was saved."""

    id: str
    at: datetime
    step: int
    metrics: dict[str, float]
    is_last: bool
    """Whether it is the run's final model."""


def list_events(db: Session, run: Run, *, limit: int, after: str = "") -> list[JobEvent]:
    """Return the events before the event `after`, newest first."""
    cursor = _cursor(db, run, after) if after else None
    history_events = [
        _event_from_run(run, event) for event in _load_run_events(db, run, cursor, limit)
    ]
    metric_events = [
        _event_from_metrics(run, step, rows)
        for step, rows in _load_metric_steps(db, run, cursor, limit)
    ]
    events = sorted([*history_events, *metric_events], key=_sort_key, reverse=True)
    return [event for event in events if cursor is None or _sort_key(event) < cursor][:limit]


def list_checkpoints(db: Session, run: Run, folder: Path) -> list[JobCheckpoint]:
    """Return the checkpoints of a run, newest first."""
    steps = {checkpoint.step for checkpoint in artifacts.list_checkpoints(folder)}
    ended = run.status is RunStatus.SUCCEEDED
    steps |= {run.step} if ended else set()
    return [
        _job_checkpoint(db, run, step, is_last=ended and step == run.step)
        for step in sorted(steps, reverse=True)
    ]


def _cursor(db: Session, run: Run, after: str) -> tuple[datetime, str]:
    match = _EVENT_ID.fullmatch(after)
    kind, number = (match[1], int(match[2])) if match else ("", 0)
    if kind == "h" and (run_event := db.get(RunEvent, number)):
        return _sort_key(_event_from_run(run, run_event))
    if kind == "s" and (rows := _metrics_at_step(db, run, number)):
        return _sort_key(_event_from_metrics(run, number, rows))
    raise InvalidError(f"Event {after[:100]} does not exist.", param="after")


def _sort_key(event: JobEvent) -> tuple[datetime, str]:
    # Metrics of the same time are sorted by step.
    prefix, _, number = event.id.rpartition("-")
    return event.at, f"{prefix}-{number[0]}{int(number[1:]):020d}"


def _load_run_events(
    db: Session, run: Run, cursor: tuple[datetime, str] | None, limit: int
) -> Sequence[RunEvent]:
    query = select(RunEvent).where(RunEvent.run_id == run.id)
    if cursor:
        query = query.where(col(RunEvent.at) <= cursor[0])
    # One more than the limit, since the cursor itself may be included.
    return db.exec(query.order_by(col(RunEvent.id).desc()).limit(limit + 1)).all()


def _load_metric_steps(
    db: Session, run: Run, cursor: tuple[datetime, str] | None, limit: int
) -> Iterable[tuple[int, list[Metric]]]:
    query = select(Metric.step).where(Metric.run_id == run.id, col(Metric.key).in_(METRIC_NAMES))
    if cursor:
        query = query.where(
            col(Metric.seconds) <= (cursor[0] - _metrics_start(run)).total_seconds()
        )
    newest_first = query.distinct().order_by(col(Metric.step).desc()).limit(limit + 1)
    for step in db.exec(newest_first).all():
        yield step, _metrics_at_step(db, run, step)


def _metrics_at_step(db: Session, run: Run, step: int) -> list[Metric]:
    query = select(Metric).where(Metric.run_id == run.id, Metric.step == step)
    return list(db.exec(query.where(col(Metric.key).in_(METRIC_NAMES)).order_by(col(Metric.id))))


def _event_from_run(run: Run, run_event: RunEvent) -> JobEvent:
    return JobEvent(
        id=f"ftevent-{run.id}-h{run_event.id}",
        at=run_event.at,
        message=run_events.to_event(run_event).words,
        level=_LEVELS.get(run_event.kind, "info"),
        data=run_event.data,
    )


def _event_from_metrics(run: Run, step: int, rows: Sequence[Metric]) -> JobEvent:
    values = _metric_values(rows)
    losses = [f"{word}={values[name]:.4f}" for name, word in _LABELS.items() if name in values]
    total_text = f"/{run.total_steps}" if run.total_steps else ""
    return JobEvent(
        id=f"ftevent-{run.id}-s{step}",
        at=_metrics_start(run)
        + timedelta(seconds=max((metric.seconds for metric in rows), default=0.0)),
        message=f"Step {step}{total_text}: {', '.join(losses) or 'no finite loss'}",
        type="metrics",
        data={"step": step, "total_steps": run.total_steps, **values},
    )


def _metrics_start(run: Run) -> datetime:
    """Return the time from which its metrics count seconds."""
    return run.started_at or run.created_at


def _job_checkpoint(db: Session, run: Run, step: int, *, is_last: bool) -> JobCheckpoint:
    before = select(Metric).where(Metric.run_id == run.id, col(Metric.step) <= step)
    newest_first = before.order_by(col(Metric.step).desc()).limit(1)
    latest = (db.exec(newest_first.where(Metric.key == key)).first() for key in METRIC_NAMES)
    rows = [metric for metric in latest if metric is not None]
    return JobCheckpoint(
        id=f"ftckpt_{run.id}_{step}",
        at=_metrics_start(run)
        + timedelta(seconds=max((metric.seconds for metric in rows), default=0.0)),
        step=step,
        metrics={"step": step, **_metric_values(rows)},
        is_last=is_last,
    )


def _metric_values(rows: Iterable[Metric]) -> dict[str, float]:
    values = {METRIC_NAMES[metric.key]: metric.value for metric in rows if metric.value is not None}
    # Every validation of the studio uses all validation rows.
    full = {f"full_{name}": value for name, value in values.items() if name.startswith("valid")}
    return values | full


_ID = re.compile(r"ftjob-(\d{1,18})")
_CANCELLED_MESSAGE = "Reading the file was cancelled."
_BAD_FILE_CODE = "bad_row"
"""The failure code for problems with a job's files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A request for a job."""

    model: str
    training_file: str
    method: str = DEFAULT_METHOD
    """Unless `changes` names another."""
    validation_file: str | None = None
    suffix: str = ""
    seed: int | None = None
    epochs: int | None = None
    """None uses the studio's default; so do the next two."""
    batch_size: int | None = None
    learning_rate_multiplier: float | None = None
    own: Mapping[str, Any] = field(default_factory=dict)
    """The method's own hyperparameters, nested like the recipe."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Recipe overrides, nested like the recipe."""
    pairs: Mapping[str, str] = field(default_factory=dict)
    """Its metadata."""
    integrations: tuple[TrackerOptions, ...] = ()
    """The projects at Weights & Biases that it is sent to."""


def create(db: Session, folder: Path, request: JobRequest, limits: Limits) -> Run:
    """Queue a run for a job; it is held until its files have been read.

    Raises:
        InvalidError: A file or the model cannot be used, the recipe cannot run here, or an
            integration needs a package that is not installed.

    """
    if request.integrations:
        _require_wandb()
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
    for options in request.integrations:
        trackers.add(db, run.id or 0, "wandb", options)
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


def _require_wandb() -> None:
    try:
        require_installed("wandb")
    except UnavailableError as error:
        refusal = InvalidError(error.message, hint=error.hint, param="integrations")
        refusal.code = "unsupported_parameter"
        raise refusal from error


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
    name = "full" if recipe.adapter.kind == "full" else "lora"
    if model and model.kind == "starter":
        name = "quick"
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
    start = model_names.start_values(db, request.model)
    _check_model(db, start["base_model"])
    values = {
        **start,
        "dataset": training.name,
        "checkpoints": {"keep_after_success": True},
    }
    try:
        method = {"method": request.changes.get("method", request.method)}
        recipe = runs.with_overrides(runs.build_recipe(values | method), request.changes)
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
    own = request.own if recipe.method == request.method else {}
    return runs.with_overrides(recipe, merge(merge({"optimisation": given}, own), request.changes))
