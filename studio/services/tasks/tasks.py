"""Background tasks: queued by another noun, done in a process of the worker, watched, cancelled.

Exports have the same lifecycle. What happens when a task ends is in
`studio.services.queue.task_results`.

queued ──▶ running ──▶ succeeded
   ▲  │       │  ├───▶ failed
   │  │       │  └───▶ cancelled
   │  └───────│────────────▲
   └──────────┘ its process ended without a final event, unobserved
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from sqlmodel import Session, col, select

from studio.db.states import TaskStatus
from studio.db.tasks import Task, TaskBase
from studio.errors import ConflictError, NotFoundError
from studio.protocols.events import Event, Failed, Finished, PhaseChanged, Stopped
from studio.protocols.tasks import TASK_DEFINITIONS, TaskDir
from studio.services.storage import atomic_dirs
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


def start_work(work: TaskBase) -> None:
    """Take work out of the queue and clear what an earlier attempt reported."""
    work.status, work.attempt = TaskStatus.RUNNING, work.attempt + 1
    work.events_offset, work.share, work.phase = 0, 0, ""


def apply_work_events(
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
                close_work(work, TaskStatus.SUCCEEDED)
            case Failed():
                fail_work(work, event)
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
        fail_work(work, exit_diagnosis.to_failed_event(exit_diagnosis.diagnose(process_exit, name)))


def requeue_work(work: TaskBase) -> None:
    work.status, work.finished_at = TaskStatus.QUEUED, None
    work.error_code = work.error_message = work.error_hint = work.phase = ""
    work.share = 0


def fail_work(work: TaskBase, failure: Failed) -> None:
    work.error_code, work.error_message, work.error_hint = (
        failure.code,
        failure.message,
        failure.hint,
    )
    close_work(work, TaskStatus.FAILED)


def close_work(work: TaskBase, status: TaskStatus) -> None:
    work.status, work.phase = status, ""
    work.finished_at = datetime.now(UTC)


def _retry(work: TaskBase, process_exit: ProcessExit, name: str) -> None:
    if work.attempt < MAX_ATTEMPTS:
        requeue_work(work)
    else:
        fail_work(work, exit_diagnosis.to_failed_event(exit_diagnosis.diagnose(process_exit, name)))


RETENTION = timedelta(days=7)
"""How long a finished task is kept, unless its result is kept for good."""


def enqueue(db: Session, kind: str, subject: str, params: dict[str, Any]) -> Task:
    """Queue a task, or return an unfinished one of the same kind and subject."""
    assert kind in TASK_DEFINITIONS, kind  # noqa: S101 -- a bug of ours
    if existing := latest(db, kind, subject, lambda other: not other.status.is_final):
        return existing
    task = Task(kind=kind, subject=subject, params=params)
    db.add(task)
    db.flush()
    return task


def get(db: Session, task_id: int) -> Task:
    task = db.get(Task, task_id)
    if task is None:
        raise NotFoundError(
            f"Task {task_id} does not exist.", hint="Finished tasks are deleted after a while."
        )
    return task


def list_for_subject(db: Session, subject: str) -> Sequence[Task]:
    """Return the tasks for a subject, newest first."""
    query = select(Task).where(Task.subject == subject).order_by(col(Task.id).desc())
    return db.exec(query).all()


def latest(
    db: Session, kind: str, subject: str, condition: Callable[[Task], bool] = lambda _task: True
) -> Task | None:
    """Return the newest task of a kind for a subject that meets a condition."""
    candidates = (task for task in list_for_subject(db, subject) if task.kind == kind)
    return next(filter(condition, candidates), None)


def hashed_subject(noun: str, text: str) -> str:
    """Return a subject that is equal for equal texts."""
    return f"{noun}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def apply_events(task: Task, events: Iterable[Event], offset: int, folder: TaskDir) -> None:
    """Apply the events that a task's process wrote since the last call."""
    if task.status.is_final:
        return  # Cancelled, but its process does not know it yet.
    if apply_work_events(task, events, offset, task.kind):
        task.result = json.loads(folder.result.read_text(encoding="utf-8"))


def cancel(task: Task) -> None:
    """Cancel a task; a worker ends its process.

    Raises:
        ConflictError: the task has already ended.

    """
    if task.status.is_final:
        raise ConflictError(f"{title(task)} has already ended: {task.status}.")
    close_work(task, TaskStatus.CANCELLED)


def retry(task: Task) -> None:
    """Queue a failed task again; it finds the files of earlier attempts.

    Raises:
        ConflictError: the task has not failed.

    """
    if task.status is not TaskStatus.FAILED:
        raise ConflictError(f"{title(task)} is {task.status}; only failed tasks can be retried.")
    task.attempt = 0
    requeue_work(task)


def title(task: Task) -> str:
    """Return the title shown to users."""
    definition = TASK_DEFINITIONS.get(task.kind)
    return definition.title if definition else task.kind.capitalize()


def describe(task: Task) -> str:
    """Return what the task is for: the text given by its creator, else its subject."""
    noun, _, number = task.subject.partition(":")
    default = f"{noun} {number}" if number.isdecimal() else ""
    return str(task.params.get("about", default))


def needs_device(task: Task) -> bool:
    return TASK_DEFINITIONS[task.kind].needs_device if task.kind in TASK_DEFINITIONS else False


def lane(task: Task) -> str:
    """Return the lane in which a task waits, among those that need no device."""
    return TASK_DEFINITIONS[task.kind].lane if task.kind in TASK_DEFINITIONS else ""


def task_dir(parent: Path, task: Task) -> TaskDir:
    return TaskDir(parent / str(task.id))


def cleanup(db: Session, parent: Path) -> None:
    """Delete tasks that ended long ago, and partial files left by a kill."""
    old = col(Task.finished_at) < datetime.now(UTC) - RETENTION
    is_kept = col(Task.kind).in_(
        [name for name, definition in TASK_DEFINITIONS.items() if definition.is_kept]
    )
    needed = is_kept & (col(Task.status) == TaskStatus.SUCCEEDED)
    for task in db.exec(select(Task).where(old, ~needed)):
        db.delete(task)
    db.flush()
    atomic_dirs.remove_orphans(parent, {str(task_id) for task_id in db.exec(select(Task.id))})
