"""Background work: running and queued exports and tasks in one list."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlmodel import Session

from studio.db.states import TaskStatus
from studio.db.tables import Run
from studio.db.tasks import Export, Task
from studio.services.models import loaded_model
from studio.services.queue import concurrent_exports, wait_reasons
from studio.services.queue.wait_reasons import Wait
from studio.services.runs import runs
from studio.services.tasks import task_lifecycle, tasks
from studio.services.workers import workers


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """An export or a task, as listed."""

    work: Export | Task
    title: str
    about: str
    """What it is for, as text."""
    takes_slot: bool
    """Whether it occupies a slot that a run could use."""
    wait: Wait | None
    """Why it is waiting, if it is."""
    owner_id: int | None = None
    """Who may cancel it; an export belongs to the owner of its run."""

    @property
    def key(self) -> str:
        """A key that is unique in the list."""
        return f"{self.work.__tablename__}-{self.work.id}"


def list_work(db: Session) -> Sequence[WorkItem]:
    """Return running work, then queued work, each in order."""
    items = [
        *(_export_item(db, work) for work in task_lifecycle.list_unfinished(db, Export)),
        *(_task_item(db, work) for work in task_lifecycle.list_unfinished(db, Task)),
    ]
    return sorted(items, key=lambda other: other.work.status is TaskStatus.QUEUED)


def count_used_slots(db: Session) -> int:
    """Return how many slots are in use by runs, other work and the loaded model."""
    used = sum(run.slots for run in runs.list_live(db)) + sum(
        item.takes_slot for item in list_work(db)
    )
    return used + (loaded_model.SLOTS_USED if loaded_model.current(db) else 0)


def _export_item(db: Session, export: Export) -> WorkItem:
    run = db.get(Run, export.run_id)
    return WorkItem(
        work=export,
        title="Export",
        about=f"of {run.name if run else 'run'} #{export.run_id}, {export.kind} in {export.dtype}",
        takes_slot=export.status is TaskStatus.RUNNING
        and concurrent_exports.takes_slot(db, export, workers.training_hardware(db)),
        wait=wait_reasons.explain_work_wait(db, export),
        owner_id=run.owner_id if run else None,
    )


def _task_item(db: Session, task: Task) -> WorkItem:
    return WorkItem(
        work=task,
        title=tasks.title(task),
        about=tasks.describe(task),
        takes_slot=task.status is TaskStatus.RUNNING and tasks.needs_device(task),
        wait=wait_reasons.explain_work_wait(db, task),
        owner_id=task.owner_id,
    )
