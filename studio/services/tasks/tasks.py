"""Background tasks: queued by another noun, done in a process of the worker, watched, cancelled.

Their lifecycle is that of all work: `studio.services.tasks.task_lifecycle`. What happens when one
ends is in `studio.services.queue.task_results`.

"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlmodel import Session, col, select

from studio.db.states import TaskStatus
from studio.db.tasks import Task
from studio.errors import ConflictError, NotFoundError
from studio.protocols.events import Event
from studio.protocols.tasks import TASK_DEFINITIONS, TaskDir
from studio.services.storage import atomic_dirs
from studio.services.tasks import task_lifecycle

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
    if task_lifecycle.apply_events(task, events, offset, task.kind):
        task.result = json.loads(folder.result.read_text(encoding="utf-8"))


def cancel(task: Task) -> None:
    """Cancel a task; a worker ends its process.

    Raises:
        ConflictError: the task has already ended.

    """
    if task.status.is_final:
        raise ConflictError(f"{title(task)} has already ended: {task.status}.")
    task_lifecycle.close(task, TaskStatus.CANCELLED)


def retry(task: Task) -> None:
    """Queue a failed task again; it finds the files of earlier attempts.

    Raises:
        ConflictError: the task has not failed.

    """
    if task.status is not TaskStatus.FAILED:
        raise ConflictError(f"{title(task)} is {task.status}; only failed tasks can be retried.")
    task.attempt = 0
    task_lifecycle.requeue(task)


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
