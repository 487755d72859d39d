"""Fine-tuning jobs of the OpenAI-compatible API: create, list, pause, resume, cancel."""

import hashlib
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from sqlmodel import Session

from studio.db.accounts import IdempotencyKey
from studio.services.accounts import idempotency_keys, owners
from studio.services.openai import fine_tuning_jobs, job_events
from studio.services.openai.fine_tuning_jobs import JobRequest
from studio.services.runs import run_commands, runs
from studio.web.api.openai.job_schemas import (
    EventOut,
    JobCheckpointOut,
    JobOut,
    NewJob,
    checkpoint_out,
    event_out,
    get_hyperparameters,
    job_out,
)
from studio.web.api.openai.schemas import OpenAIListing, make_page
from studio.web.api.runs.run_results import run_folder as folder_of
from studio.web.auth.identity import require_identity
from studio.web.http.deps import DB, Config
from studio.web.http.multipart_upload import read_limits

router = APIRouter(prefix="/v1/fine_tuning/jobs", tags=["openai"])

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
    rows = job_events.list_events(db, run, limit=limit + 1, after=after)
    return make_page(
        [event_out(event) for event in rows[:limit]], [event.id for event in rows], limit
    )


@router.get("/{job_id}/checkpoints")
def checkpoints(
    job_id: str, db: DB, config: Config, after: str = "", limit: Limit = 10
) -> OpenAIListing[JobCheckpointOut]:
    """List the saved checkpoints and the final model of a job, newest first."""
    run = fine_tuning_jobs.get(db, job_id)
    rows = job_events.list_checkpoints(db, run, folder_of(db, config, run.id or 0).checkpoints)
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


def _retry_key(request: Request, body: bytes) -> str:
    """Return a key that retries of a request share: a hash of the sender and the body."""
    authorization = request.headers.get("authorization", "").encode()
    return f"openai:{hashlib.sha256(authorization + b'|' + body).hexdigest()}"


def _job_request(new: NewJob) -> JobRequest:
    chosen = get_hyperparameters(new)
    changes: dict[str, Any] = new.x_studio or {}
    return JobRequest(
        model=new.model,
        training_file=new.training_file,
        validation_file=new.validation_file,
        suffix=new.suffix or "",
        seed=new.seed,
        epochs=None if chosen.n_epochs == "auto" else chosen.n_epochs,
        batch_size=None if chosen.batch_size == "auto" else chosen.batch_size,
        learning_rate_multiplier=None
        if chosen.learning_rate_multiplier == "auto"
        else chosen.learning_rate_multiplier,
        changes=changes,
        pairs=new.metadata or {},
    )
