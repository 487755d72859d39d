"""The lifecycle of work done in a separate process: an export or a task.

queued ──▶ running ──▶ succeeded
   ▲  │       │  ├───▶ failed
   │  │       │  └───▶ cancelled
   │  └───────│────────────▲
   └──────────┘ its process ended without a final event, unobserved
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from sqlmodel import Session, col, select

from studio.db.states import TaskStatus
from studio.db.tasks import TaskBase
from studio.protocols.events import Event, Failed, Finished, PhaseChanged, Stopped
from studio.services.tasks import exit_diagnosis
from studio.services.tasks.exit_diagnosis import ProcessExit

W = TypeVar("W", bound=TaskBase)

MAX_ATTEMPTS = 3
"""Attempts after which work whose process ended unobserved is not retried."""


def list_waiting(db: Session, table: type[W]) -> Sequence[W]:
    """Return the queued work in the order in which it will start."""
    query = select(table).where(table.status == TaskStatus.QUEUED).order_by(col(table.id))
    return db.exec(query).all()


def list_unfinished(db: Session, table: type[W]) -> Sequence[W]:
    """Return the queued and running work."""
    states = (TaskStatus.QUEUED, TaskStatus.RUNNING)
    return db.exec(select(table).where(col(table.status).in_(states)).order_by(col(table.id))).all()


def list_live(db: Session, table: type[W]) -> Sequence[W]:
    """Return work that has or is about to get a process, even if it was cancelled."""
    is_live = (col(table.status) == TaskStatus.RUNNING) | col(table.pid).is_not(None)
    query = select(table).where(is_live).order_by(col(table.id))
    return db.exec(query).all()


def start(work: TaskBase) -> None:
    """Take work out of the queue and clear what an earlier attempt reported."""
    work.status, work.attempt = TaskStatus.RUNNING, work.attempt + 1
    work.events_offset, work.share, work.phase = 0, 0, ""


def apply_events(
    work: TaskBase, events: Iterable[Event], offset: int, name: str
) -> Finished | None:
    """Apply new events of the work's process. Return its final event if it succeeded.

    `name` is what the work is called in messages: "export".

    """
    finished = None
    for event in events:
        match event:
            case PhaseChanged(name=name, share=share):
                work.phase, work.share = name, share or work.share
            case Finished():
                finished, work.share = event, 1
                close(work, TaskStatus.SUCCEEDED)
            case Failed():
                fail(work, event)
            case Stopped():
                _retry(work, ProcessExit(), name)
    work.events_offset = offset
    return finished


def close_exited(work: TaskBase, process_exit: ProcessExit, name: str) -> None:
    """Close work whose process is gone; retry if it ended unobserved."""
    work.pid = work.pid_started = None
    if work.status is not TaskStatus.RUNNING:
        return
    if process_exit.exit_code is None:
        _retry(work, process_exit, name)
    else:
        fail(work, exit_diagnosis.to_failed_event(exit_diagnosis.diagnose(process_exit, name)))


def requeue(work: TaskBase) -> None:
    work.status, work.finished_at = TaskStatus.QUEUED, None
    work.error_code = work.error_message = work.error_hint = work.phase = ""
    work.share = 0


def fail(work: TaskBase, failure: Failed) -> None:
    work.error_code, work.error_message, work.error_hint = (
        failure.code,
        failure.message,
        failure.hint,
    )
    close(work, TaskStatus.FAILED)


def close(work: TaskBase, status: TaskStatus) -> None:
    work.status, work.phase = status, ""
    work.finished_at = datetime.now(UTC)


def _retry(work: TaskBase, process_exit: ProcessExit, name: str) -> None:
    if work.attempt < MAX_ATTEMPTS:
        requeue(work)
    else:
        fail(work, exit_diagnosis.to_failed_event(exit_diagnosis.diagnose(process_exit, name)))
