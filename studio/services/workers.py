"""Who is there to train: workers, their slots, and the last time each was heard of."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from pydantic import TypeAdapter, ValidationError
from sqlmodel import Session, col, delete, select

from studio.db.tables import Worker
from studio.db.work import Loaded
from studio.hardware import Hardware, detect

HARDWARE = TypeAdapter(Hardware)

SILENCE = timedelta(seconds=15)
"""A worker that was not heard of for three beats is taken for gone."""


def beat(db: Session, worker: Worker) -> None:
    """Say that a worker is alive, and forget those that were not heard of for long."""
    db.exec(delete(Worker).where(col(Worker.beat_at) < datetime.now(UTC) - 4 * SILENCE))
    db.merge(worker)


def retire(db: Session, name: str) -> None:
    """Say that a worker has ended of its own will, and what it had loaded along with it."""
    db.exec(delete(Loaded).where(col(Loaded.worker) == name))
    db.exec(delete(Worker).where(col(Worker.name) == name))


def heard_of(db: Session) -> Sequence[Worker]:
    """Return the workers heard of lately."""
    query = select(Worker).where(col(Worker.beat_at) > datetime.now(UTC) - SILENCE)
    return db.exec(query.order_by(col(Worker.name))).all()


def hardware(db: Session) -> Hardware | None:
    """Return what the newest living worker trains on; None while no worker is connected."""
    newest = max(heard_of(db), key=lambda worker: worker.beat_at, default=None)
    if newest is None or newest.hardware is None:
        return None
    try:
        return HARDWARE.validate_python(newest.hardware)
    except ValidationError:
        return None  # A worker of another version describes its machine in other fields.


def machine(db: Session) -> Hardware:
    """Return the hardware that runs train on, or this machine's while no worker is connected."""
    return hardware(db) or detect()


def slots(db: Session) -> int:
    """Return how many slots the living workers have."""
    return sum(worker.slots for worker in heard_of(db))
