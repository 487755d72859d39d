"""The life of work that a process of its own does: an export, a chore.

queued ──▶ running ──▶ succeeded
   ▲  │       │  ├───▶ failed
   │  │       │  └───▶ cancelled
   │  └───────│────────────▲
   └──────────┘ its process is gone without a word, and nobody saw why
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
"""Work whose process dies as often as this, unseen, is not tried again."""


def list_waiting(db: Session, table: type[W]) -> Sequence[W]:
    """Return the work that waits, in the order in which it will begin."""
    query = select(table).where(table.status == TaskStatus.QUEUED).order_by(col(table.id))
    return db.exec(query).all()


def list_unfinished(db: Session, table: type[W]) -> Sequence[W]:
    """Return the work that goes on or waits."""
    states = (TaskStatus.QUEUED, TaskStatus.RUNNING)
    return db.exec(select(table).where(col(table.status).in_(states)).order_by(col(table.id))).all()


def list_live(db: Session, table: type[W]) -> Sequence[W]:
    """Return the work that a process was made for, or is about to be, wanted or not."""
    is_live = (col(table.status) == TaskStatus.RUNNING) | col(table.pid).is_not(None)
    query = select(table).where(is_live).order_by(col(table.id))
    return db.exec(query).all()


def start(work: TaskBase) -> None:
    """Take work out of the queue and forget what an earlier try has said."""
    work.status, work.attempt = TaskStatus.RUNNING, work.attempt + 1
    work.events_offset, work.share, work.phase = 0, 0, ""


def apply_events(
    work: TaskBase, events: Iterable[Event], offset: int, name: str
) -> Finished | None:
    """Bring work up to date with what its process has said. Return what it ended with, if well.

    `name` is what the work is called in a sentence: "export".
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


def close_exited(work: TaskBase, end: ProcessExit, name: str) -> None:
    """Close work whose process is gone; try again what ended without a word unseen."""
    work.pid = work.pid_started = None
    if work.status is not TaskStatus.RUNNING:
        return
    if end.exit_code is None:
        _retry(work, end, name)
    else:
        fail(work, exit_diagnosis.to_failed_event(exit_diagnosis.diagnose(end, name)))


def requeue(work: TaskBase) -> None:
    work.status, work.finished_at = TaskStatus.QUEUED, None
    work.error_code = work.error_message = work.error_hint = work.phase = ""
    work.share = 0


def fail(work: TaskBase, why: Failed) -> None:
    work.error_code, work.error_message, work.error_hint = why.code, why.message, why.hint
    close(work, TaskStatus.FAILED)


def close(work: TaskBase, status: TaskStatus) -> None:
    work.status, work.phase = status, ""
    work.finished_at = datetime.now(UTC)


def _retry(work: TaskBase, end: ProcessExit, name: str) -> None:
    if work.attempt < MAX_ATTEMPTS:
        requeue(work)
    else:
        fail(work, exit_diagnosis.to_failed_event(exit_diagnosis.diagnose(end, name)))
