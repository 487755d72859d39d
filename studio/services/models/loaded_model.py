"""The model loaded by the inference service: its status, and requests to unload it."""

from datetime import UTC, datetime, timedelta

from sqlmodel import Session, col, delete, select

from studio.db.tables import Worker
from studio.db.tasks import LoadedModel
from studio.errors import ConflictError
from studio.services.workers import workers

SLOTS_USED = 1
"""Run slots it occupies; it unloads when a run waits for one."""


def current(db: Session) -> LoadedModel | None:
    """Return the loaded model, as reported by a live worker."""
    names = [worker.name for worker in workers.list_alive(db)]
    return db.exec(select(LoadedModel).where(col(LoadedModel.worker).in_(names))).first()


def time_left(row: LoadedModel) -> timedelta | None:
    """Return the time until it unloads if idle; None while it answers or is to unload."""
    if row.leaves_at is None or row.is_leaving:
        return None
    return max(row.leaves_at - datetime.now(UTC), timedelta())


def request_unload(db: Session) -> LoadedModel:
    """Unload the model when its current answer is complete.

    Raises:
        ConflictError: No model is loaded.

    """
    row = current(db)
    if row is None:
        raise ConflictError("No model is loaded.", hint="It may have been unloaded already.")
    row.is_leaving = True
    return row


def save_status(db: Session, status: LoadedModel) -> None:
    """Store a worker's report; keep a request to unload."""
    row = db.get(LoadedModel, status.worker)
    if row is None:
        db.add(status)
        return
    row.model, row.since, row.leaves_at = status.model, status.since, status.leaves_at
    row.computed_in = status.computed_in
    row.is_leaving |= status.is_leaving


def is_unload_requested(db: Session, worker: str) -> bool:
    row = db.get(LoadedModel, worker)
    return row is not None and row.is_leaving


def clear(db: Session, worker: str) -> None:
    """Delete a worker's row, and those of workers that no longer exist."""
    worker_missing = col(LoadedModel.worker).not_in(select(Worker.name))
    db.exec(delete(LoadedModel).where(worker_missing | (col(LoadedModel.worker) == worker)))
