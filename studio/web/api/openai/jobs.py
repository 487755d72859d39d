"""Fine-tuning jobs of the OpenAI-compatible API: create, list, pause, resume, cancel."""

import hashlib
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len
from fastapi import APIRouter, Header, Query, Request
from pydantic import Field
from sqlmodel import Session

from studio.db.accounts import IdempotencyKey
from studio.db.states import RunCommand, RunStatus
from studio.db.tables import OpenAIJob, Run
from studio.recipe.dotted_keys import nest
from studio.services.accounts import idempotency_keys, owners
from studio.services.estimates import run_progress
from studio.services.openai import fine_tuning_jobs, model_names
from studio.services.openai.fine_tuning_jobs import JobCheckpoint, JobEvent, JobRequest
from studio.services.queue import queue
from studio.services.runs import failure_report, run_commands, runs
from studio.services.trackers import trackers
from studio.trackers.contract import TrackerOptions
from studio.web.api.conventions import ChosenPrecision, chosen_precision
from studio.web.api.openai.job_methods import (
    Hyperparameters,
    JobMethodOut,
    Method,
    ResolvedOut,
    get_hyperparameters,
    get_method,
    method_out,
    own_settings,
    resolved_hyperparameters,
)
from studio.web.api.openai.schemas import (
    Body,
    OpenAIListing,
    Out,
    check_fields,
    make_page,
    unix_seconds,
)
from studio.web.api.runs.run_results import run_folder as folder_of
from studio.web.auth.identity import require_identity
from studio.web.http.deps import DB, Config
from studio.web.http.multipart_upload import read_limits

router = APIRouter(prefix="/v1/fine_tuning/jobs", tags=["openai"])


MetadataKey = Annotated[str, Field(max_length=64, pattern=r'^[^"\\]*$')]
"""A metadata key. Characters that databases treat differently in queries are not allowed."""


IntegrationText = Annotated[str, Field(max_length=200)]


class WandbIntegration(Out):
    project: Annotated[str, Len(1, 200)]
    name: IntegrationText | None = None
    entity: IntegrationText | None = None
    tags: Annotated[list[IntegrationText], Len(0, 50)] | None = None


class Integration(Out):
    """Where the metrics of a job are sent, too."""

    type: Literal["wandb"]
    wandb: WandbIntegration


class NewJob(Body):
    model: Annotated[str, Len(1, 1000)]
    training_file: Annotated[str, Len(1, 200)]
    validation_file: Annotated[str, Len(1, 200)] | None = None
    method: Method | None = None
    hyperparameters: Hyperparameters | None = None
    """Sent by older clients; `method` takes precedence."""
    suffix: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^:/\s][^:/\t\n\r]*$")] | (
        None
    ) = None
    seed: Annotated[int, Ge(0), Le(2**31 - 1)] | None = None
    metadata: Annotated[dict[MetadataKey, Annotated[str, Len(0, 512)]], Len(0, 16)] | None = None
    integrations: Annotated[list[Integration], Len(0, 5)] | None = None
    x_studio: dict[str, Any] | None = None
    """Other settings, nested like the recipe: `{"precision": "fp32", "adapter": {"r": 32}}`."""


class JobErrorOut(Out):
    code: str
    message: str
    param: str | None = None


class StudioOut(Out):
    """Fields that OpenAI's API does not have."""

    run: int
    status: RunStatus
    queue_position: int | None
    step: int
    total_steps: int | None
    recommended_learning_rate: float
    """The learning rate for a multiplier of 1."""
    recipe: dict[str, Any]
    """The full recipe of the run."""
    precision: ChosenPrecision
    resolved: dict[str, Any]
    """The actual dtypes, counts and versions. Empty until the trainer is built."""


class JobOut(Out):
    id: str
    object: Literal["fine_tuning.job"] = "fine_tuning.job"
    created_at: int
    finished_at: int | None
    estimated_finish: int | None
    model: str
    fine_tuned_model: str | None
    organization_id: str = model_names.ORGANISATION
    status: str
    hyperparameters: ResolvedOut
    method: JobMethodOut
    training_file: str
    validation_file: str | None
    result_files: list[str]
    trained_tokens: int | None
    seed: int
    suffix: str | None
    metadata: dict[str, str]
    integrations: list[Integration]
    error: JobErrorOut | None
    x_studio: StudioOut


class EventOut(Out):
    id: str
    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"
    created_at: int
    level: Literal["info", "warn", "error"]
    message: str
    type: Literal["message", "metrics"]
    data: dict[str, Any]


class JobCheckpointOut(Out):
    id: str
    object: Literal["fine_tuning.job.checkpoint"] = "fine_tuning.job.checkpoint"
    created_at: int
    fine_tuned_model_checkpoint: str
    fine_tuning_job_id: str
    step_number: int
    metrics: dict[str, float]


def job_out(db: Session, run: Run) -> JobOut:
    job = fine_tuning_jobs.get_job(db, run)
    rate = fine_tuning_jobs.recommended_learning_rate(db, run.recipe)
    resolved = resolved_hyperparameters(run, rate)
    has_succeeded = run.status is RunStatus.SUCCEEDED
    return JobOut(
        id=f"ftjob-{run.id}",
        created_at=unix_seconds(run.created_at),
        finished_at=unix_seconds(run.finished_at) if run.finished_at else None,
        estimated_finish=_estimated_finish(run),
        model=run.recipe.base_model,
        fine_tuned_model=model_names.tuned_model_name(run, job.suffix) if has_succeeded else None,
        status=_job_status(run, job),
        hyperparameters=resolved,
        method=method_out(run, resolved),
        training_file=f"file-{job.training_id}",
        validation_file=f"file-{job.validation_id}" if job.validation_id else None,
        result_files=[f"file-results-{run.id}"] if has_succeeded else [],
        trained_tokens=run.tokens if has_succeeded else None,
        seed=run.recipe.optimisation.seed,
        suffix=job.suffix or None,
        metadata=job.pairs,
        integrations=_integrations(db, run),
        error=_job_error(db, run, job),
        x_studio=StudioOut(
            run=run.id or 0,
            status=run.status,
            queue_position=queue.position(db, run),
            step=run.step,
            total_steps=run.total_steps,
            recommended_learning_rate=rate,
            recipe=run.recipe.model_dump(mode="json"),
            precision=chosen_precision(run),
            resolved=run.resolved,
        ),
    )


def _integrations(db: Session, run: Run) -> list[Integration]:
    """Return what the job was asked to be sent to: a project at Weights & Biases."""
    rows = trackers.list_for_run(db, run.id or 0)
    asked = [row.options for row in rows if row.tracker == "wandb" and row.options.get("project")]
    given = [{name: value for name, value in one.items() if value} for one in asked]
    return [
        Integration(type="wandb", wandb=WandbIntegration.model_validate(options))
        for options in given
    ]


def event_out(event: JobEvent) -> EventOut:
    return EventOut(
        id=event.id,
        created_at=unix_seconds(event.at),
        level=event.level,
        message=event.message,
        type=event.type,
        data=event.data,
    )


def checkpoint_out(db: Session, run: Run, saved: JobCheckpoint) -> JobCheckpointOut:
    suffix, step = model_names.job_suffix(db, run), None if saved.is_last else saved.step
    return JobCheckpointOut(
        id=saved.id,
        created_at=unix_seconds(saved.at),
        fine_tuned_model_checkpoint=model_names.tuned_model_name(run, suffix, step),
        fine_tuning_job_id=f"ftjob-{run.id}",
        step_number=saved.step,
        metrics=saved.metrics,
    )


_JOB_STATUSES = {
    RunStatus.QUEUED: "queued",
    RunStatus.STARTING: "running",
    RunStatus.RUNNING: "running",
    RunStatus.PAUSED: "paused",
    RunStatus.SUCCEEDED: "succeeded",
    RunStatus.FAILED: "failed",
    RunStatus.CANCELLED: "cancelled",
}
_STOPPING_STATUSES = {
    RunCommand.PAUSE: "pausing",
    RunCommand.DRAIN: "running",
    RunCommand.KEEP: "running",
}


def _job_status(run: Run, job: OpenAIJob) -> str:
    """Return OpenAI's status of a run; a run that is being cancelled counts as cancelled."""
    if job.is_validating and run.status is RunStatus.QUEUED:
        return "validating_files"
    if run.status is RunStatus.STOPPING:
        return _STOPPING_STATUSES.get(run.asked or RunCommand.CANCEL, "cancelled")
    return _JOB_STATUSES[run.status]


def _estimated_finish(run: Run) -> int | None:
    eta_seconds = run_progress.measure(run).eta_seconds
    return (
        None
        if eta_seconds is None
        else unix_seconds(datetime.now(UTC) + timedelta(seconds=eta_seconds))
    )


def _job_error(db: Session, run: Run, job: OpenAIJob) -> JobErrorOut | None:
    failure = failure_report.explain(db, run)
    if failure is None:
        return None
    message = f"{failure.message} {failure.hint}".strip()
    if job.is_validating:
        return JobErrorOut(code="invalid_training_file", message=message, param="training_file")
    return JobErrorOut(code=failure.kind.code, message=message)


IdempotencyHeader = Annotated[str, Header(max_length=255)]
Retries = Annotated[int, Header(alias="x-stainless-retry-count", ge=0)]
Limit = Annotated[int, Query(ge=1, le=100)]
_METADATA_PREFIX = "metadata["


@router.post("")
def create(
    new: NewJob,
    request: Request,
    db: DB,
    config: Config,
    idempotency_key: IdempotencyHeader = "",
    retries: Retries = 0,
) -> JobOut:
    """Queue a run. Retrying the request after a lost response does not create a second run.

    A retry is recognised by its `Idempotency-Key`, or by the retry count that OpenAI's clients
    send.
    """
    body = new.model_dump_json().encode()
    account_id = require_identity(request).account_id
    key = (
        idempotency_keys.scoped_key(idempotency_key, account_id)
        if idempotency_key
        else _retry_key(request, body)
    )
    if not idempotency_key and not retries:
        idempotency_keys.discard(db, key)
    sha256 = hashlib.sha256(body).hexdigest()
    stored = idempotency_keys.find_answer(db, key, sha256)
    if stored is not None:
        return job_out(db, runs.get(db, int(stored.body)))
    run = fine_tuning_jobs.create(db, config.datasets, _job_request(new), read_limits(config))
    run_id = str(run.id).encode()
    idempotency_keys.store_answer(
        db, IdempotencyKey(key=key, sha256=sha256, status=HTTPStatus.OK, body=run_id)
    )
    return job_out(db, run)


@router.get("")
def newest(
    request: Request, db: DB, after: str | None = None, limit: Limit = 20
) -> OpenAIListing[JobOut]:
    """List the jobs, newest first; `metadata[name]=value` filters by metadata."""
    before_id = None if after is None else fine_tuning_jobs.get(db, after).id
    pairs = {
        name.removeprefix(_METADATA_PREFIX).removesuffix("]"): value
        for name, value in request.query_params.multi_items()
        if name.startswith(_METADATA_PREFIX)
    }
    rows = fine_tuning_jobs.list_jobs(db, limit=limit + 1, before=before_id, pairs=pairs)
    page_jobs = [job_out(db, run) for run in rows[:limit]]
    return make_page(page_jobs, [f"ftjob-{run.id}" for run in rows], limit)


@router.get("/{job_id}")
def show(job_id: str, db: DB) -> JobOut:
    return job_out(db, fine_tuning_jobs.get(db, job_id))


@router.post("/{job_id}/cancel")
def cancel(job_id: str, db: DB) -> JobOut:
    return job_out(db, run_commands.cancel(db, _owned_run_id(db, job_id)))


@router.post("/{job_id}/pause")
def pause(job_id: str, db: DB) -> JobOut:
    """Pause a job: it writes a checkpoint and releases its slot."""
    return job_out(db, run_commands.pause(db, _owned_run_id(db, job_id)))


@router.post("/{job_id}/resume")
def resume(job_id: str, db: DB) -> JobOut:
    return job_out(db, run_commands.resume(db, _owned_run_id(db, job_id)))


@router.get("/{job_id}/events")
def events(job_id: str, db: DB, after: str = "", limit: Limit = 20) -> OpenAIListing[EventOut]:
    """List the events and metrics of a job, newest first."""
    run = fine_tuning_jobs.get(db, job_id)
    rows = fine_tuning_jobs.list_events(db, run, limit=limit + 1, after=after)
    return make_page(
        [event_out(event) for event in rows[:limit]], [event.id for event in rows], limit
    )


@router.get("/{job_id}/checkpoints")
def checkpoints(
    job_id: str, db: DB, config: Config, after: str = "", limit: Limit = 10
) -> OpenAIListing[JobCheckpointOut]:
    """List the saved checkpoints and the final model of a job, newest first."""
    run = fine_tuning_jobs.get(db, job_id)
    rows = fine_tuning_jobs.list_checkpoints(
        db, run, folder_of(db, config, run.id or 0).checkpoints
    )
    ids = [checkpoint.id for checkpoint in rows]
    start = ids.index(after) + 1 if after in ids else 0
    rows, ids = rows[start : start + limit + 1], ids[start : start + limit + 1]
    return make_page(
        [checkpoint_out(db, run, checkpoint) for checkpoint in rows[:limit]], ids, limit
    )


def _owned_run_id(db: Session, job_id: str) -> int:
    """Return the run id of a job, if the caller may change it."""
    run_id = fine_tuning_jobs.get(db, job_id).id or 0
    owners.require(db, "runs", [run_id])
    return run_id


def _tracker_options(integration: Integration) -> TrackerOptions:
    given = integration.wandb.model_dump(exclude_none=True)
    return TrackerOptions.model_validate(given, strict=False)


def _retry_key(request: Request, body: bytes) -> str:
    """Return a key that retries of a request share: a hash of the sender and the body."""
    authorization = request.headers.get("authorization", "").encode()
    return f"openai:{hashlib.sha256(authorization + b'|' + body).hexdigest()}"


def _job_request(new: NewJob) -> JobRequest:
    check_fields(new, (), {})
    chosen = get_hyperparameters(new.method, new.hyperparameters)
    changes: dict[str, Any] = new.x_studio or {}
    return JobRequest(
        model=new.model,
        method=get_method(new.method).name,
        training_file=new.training_file,
        validation_file=new.validation_file,
        suffix=new.suffix or "",
        seed=new.seed,
        epochs=None if chosen.n_epochs == "auto" else chosen.n_epochs,
        batch_size=None if chosen.batch_size == "auto" else chosen.batch_size,
        learning_rate_multiplier=None
        if chosen.learning_rate_multiplier == "auto"
        else chosen.learning_rate_multiplier,
        own=nest(own_settings(new.method, chosen).items()),
        changes=changes,
        pairs=new.metadata or {},
        integrations=tuple(map(_tracker_options, new.integrations or ())),
    )
