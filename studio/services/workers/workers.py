"""Who is there to train: workers, their slots, and the last time each was heard of."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from pydantic import TypeAdapter, ValidationError
from sqlmodel import Session, col, delete, select

from studio.db.tables import FailingStep, Worker
from studio.db.tasks import LoadedModel
from studio.hardware import Hardware, detect
from studio.services.workers import matmul_speeds

HARDWARE_ADAPTER = TypeAdapter(Hardware)

HEARTBEAT_TIMEOUT = timedelta(seconds=15)
"""A worker that was not heard of for three beats is taken for gone."""


def heartbeat(db: Session, worker: Worker) -> None:
    """Say that a worker is alive, and forget those that were not heard of for long."""
    db.exec(delete(Worker).where(col(Worker.beat_at) < datetime.now(UTC) - 4 * HEARTBEAT_TIMEOUT))
    db.merge(worker)


def deregister(db: Session, name: str) -> None:
    """Say that a worker has ended of its own will, and what it had loaded along with it."""
    db.exec(delete(LoadedModel).where(col(LoadedModel.worker) == name))
    db.exec(delete(Worker).where(col(Worker.name) == name))


def deregister_process(db: Session, pid: int) -> None:
    """Say that the worker in a process of this machine is gone, without waiting for its silence."""
    for name in db.exec(select(Worker.name).where(Worker.pid == pid)).all():
        deregister(db, name)


def list_alive(db: Session) -> Sequence[Worker]:
    """Return the workers heard of lately."""
    query = select(Worker).where(col(Worker.beat_at) > datetime.now(UTC) - HEARTBEAT_TIMEOUT)
    return db.exec(query.order_by(col(Worker.name))).all()


def connected_hardware(db: Session) -> Hardware | None:
    """Return what the newest living worker trains on; None while no worker is connected."""
    newest = max(list_alive(db), key=lambda worker: worker.beat_at, default=None)
    if newest is None or newest.hardware is None:
        return None
    try:
        return HARDWARE_ADAPTER.validate_python(newest.hardware)
    except ValidationError:
        return None  # A worker of another version describes its machine in other fields.


def training_hardware(db: Session) -> Hardware:
    """Return the hardware that runs train on, or this machine's while no worker is connected.

    It includes the measured speeds, once they are known.
    """
    return matmul_speeds.with_measured_speeds(db, connected_hardware(db) or detect())


def count_slots(db: Session) -> int:
    """Return how many slots the living workers have."""
    return sum(worker.slots for worker in list_alive(db))


STEP_FAILURES = {
    "adopt": "The worker cannot take over what an earlier worker left",
    "desk": "The worker cannot start what shows rows as a model sees them",
    "end": "The worker cannot end what it cannot follow",
    "fail": "The worker cannot say why a run did not start",
    "follow": "The worker cannot follow what runs",
    "heartbeat": "The worker cannot report that it is alive",
    "kill": "The worker cannot end the process of a run",
    "launcher": "The worker cannot keep its launcher",
    "leave": "The worker cannot leave in order",
    "messages": "The worker cannot send messages",
    "rest": "The worker cannot watch the database",
    "speaker": "The worker cannot start models that answer",
    "start": "The worker cannot start what waits",
    "sweeps": "The worker cannot continue a sweep",
    "tidy": "The worker cannot clean up finished tasks",
    "trash": "The worker cannot empty the trash",
}
"""The steps of a worker's tick, by name, and what is wrong while one fails."""


def describe_failure(failing: FailingStep) -> str:
    """Say what a worker cannot do at present."""
    about = f"{failing.subject}: {failing.error}" if failing.subject else failing.error
    return f"{STEP_FAILURES[failing.step]} ({about})"


def list_failures(db: Session) -> list[str]:
    """Say what the workers cannot do at present; they go on with the rest."""
    return [describe_failure(step) for worker in list_alive(db) for step in worker.failing]
