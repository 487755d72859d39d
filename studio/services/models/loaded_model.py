"""The model that is loaded to answer: what its worker tells of it, and how it is had to leave."""

from datetime import UTC, datetime, timedelta

from sqlmodel import Session, col, delete, select

from studio.db.tables import Worker
from studio.db.tasks import LoadedModel
from studio.errors import ConflictError
from studio.services.workers import workers

SLOTS_USED = 1
"""How many slots it takes that runs could have; it leaves when one waits for them."""


def current(db: Session) -> LoadedModel | None:
    """Return what is loaded, if a worker that was heard of lately tells so."""
    names = [worker.name for worker in workers.list_alive(db)]
    return db.exec(select(LoadedModel).where(col(LoadedModel.worker).in_(names))).first()


def time_left(row: LoadedModel) -> timedelta | None:
    """Return how long it stays unless it is asked; None while it answers, or is to leave."""
    if row.leaves_at is None or row.is_leaving:
        return None
    return max(row.leaves_at - datetime.now(UTC), timedelta())


def request_unload(db: Session) -> LoadedModel:
    """Have it leave once the answer at hand is whole.

    Raises:
        ConflictError: there is none.

    """
    row = current(db)
    if row is None:
        raise ConflictError(
            "No model is loaded to answer.", hint="It has left already, or was never asked."
        )
    row.is_leaving = True
    return row


def save_status(db: Session, told: LoadedModel) -> None:
    """Write down what a worker tells of it; who asked it to leave is not forgotten."""
    row = db.get(LoadedModel, told.worker)
    if row is None:
        db.add(told)
        return
    row.model, row.since, row.leaves_at = told.model, told.since, told.leaves_at
    row.computed_in = told.computed_in
    row.is_leaving |= told.is_leaving


def is_unload_requested(db: Session, worker: str) -> bool:
    row = db.get(LoadedModel, worker)
    return row is not None and row.is_leaving


def clear(db: Session, worker: str) -> None:
    """Say that it is gone; what vanished workers have left goes along."""
    gone = col(LoadedModel.worker).not_in(select(Worker.name))
    db.exec(delete(LoadedModel).where(gone | (col(LoadedModel.worker) == worker)))
