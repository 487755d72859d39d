"""Background tasks: queued by another noun, done in a process of the worker, watched, cancelled.

Their lifecycle is that of all work: `studio.services.tasks.task_lifecycle`. What happens when one
ends is in `studio.services.queue.task_results`.

"""

import json
from collections.abc import Iterable, Sequence
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
    same = (
        one for one in list_for_subject(db, subject) if one.kind == kind and not one.status.is_final
    )
    if found := next(same, None):
        return found
    chore = Task(kind=kind, subject=subject, params=params)
    db.add(chore)
    db.flush()
    return chore


def get(db: Session, chore_id: int) -> Task:
    chore = db.get(Task, chore_id)
    if chore is None:
        raise NotFoundError(
            f"Task {chore_id} does not exist.", hint="Finished tasks are deleted after a while."
        )
    return chore


def list_for_subject(db: Session, subject: str) -> Sequence[Task]:
    """Return the tasks for a subject, newest first."""
    query = select(Task).where(Task.subject == subject).order_by(col(Task.id).desc())
    return db.exec(query).all()


def apply_events(chore: Task, events: Iterable[Event], offset: int, folder: TaskDir) -> None:
    """Apply the events that a task's process wrote since the last call."""
    if chore.status.is_final:
        return  # Cancelled, but its process does not know it yet.
    if task_lifecycle.apply_events(chore, events, offset, chore.kind):
        chore.result = json.loads(folder.result.read_text(encoding="utf-8"))


def cancel(chore: Task) -> None:
    """Cancel a task; a worker ends its process.

    Raises:
        ConflictError: the task has already ended.

    """
    if chore.status.is_final:
        raise ConflictError(f"{title(chore)} has already ended: {chore.status}.")
    task_lifecycle.close(chore, TaskStatus.CANCELLED)


def retry(chore: Task) -> None:
    """Queue a failed task again; it finds the files of earlier attempts.

    Raises:
        ConflictError: the task has not failed.

    """
    if chore.status is not TaskStatus.FAILED:
        raise ConflictError(f"{title(chore)} is {chore.status}; only failed tasks can be retried.")
    chore.attempt = 0
    task_lifecycle.requeue(chore)


def title(chore: Task) -> str:
    """Return the title shown to users."""
    known = TASK_DEFINITIONS.get(chore.kind)
    return known.title if known else chore.kind.capitalize()


def describe(chore: Task) -> str:
    """Return what the task is for: the text given by its creator, else its subject."""
    noun, _, number = chore.subject.partition(":")
    told = f"{noun} {number}" if number.isdecimal() else ""
    return str(chore.params.get("about", told))


def needs_device(chore: Task) -> bool:
    return TASK_DEFINITIONS[chore.kind].needs_device if chore.kind in TASK_DEFINITIONS else False


def task_dir(parent: Path, chore: Task) -> TaskDir:
    return TaskDir(parent / str(chore.id))


def cleanup(db: Session, parent: Path) -> None:
    """Delete tasks that ended long ago, and partial files left by a kill."""
    old = col(Task.finished_at) < datetime.now(UTC) - RETENTION
    is_kept = col(Task.kind).in_([name for name, kind in TASK_DEFINITIONS.items() if kind.is_kept])
    needed = is_kept & (col(Task.status) == TaskStatus.SUCCEEDED)
    for chore in db.exec(select(Task).where(old, ~needed)):
        db.delete(chore)
    db.flush()
    atomic_dirs.remove_orphans(parent, {str(chore_id) for chore_id in db.exec(select(Task.id))})
