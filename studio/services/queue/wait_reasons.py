"""Why something waits: a run, an export or a task. In a sentence, since when, and how long yet."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from sqlmodel import Session

from studio.db.states import TaskStatus
from studio.db.tables import Run
from studio.db.tasks import Export, Task, TaskBase
from studio.hardware import free_memory
from studio.services.estimates import run_progress
from studio.services.models import loaded_model
from studio.services.queue import concurrent_exports, queue
from studio.services.runs import runs
from studio.services.tasks import task_lifecycle, tasks
from studio.services.workers import worker_process, workers

W = TypeVar("W", bound=TaskBase)

SOON = "starts in a moment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One thing that waits."""

    reason: str
    """Why, in words."""
    since: datetime
    seconds: float | None = None
    """Until it starts, estimated; None where that is not known."""

    @property
    def waited_seconds(self) -> float:
        return run_progress.elapsed_seconds(self.since, datetime.now(UTC))


@dataclass(frozen=True, slots=True)
class Blocker:
    """What keeps the next in line from starting."""

    reason: str
    seconds: float | None = None


def find_worker_blocker(db: Session) -> Blocker | None:
    """Say that no worker is there to start anything, and whether one will be."""
    if workers.list_alive(db):
        return None
    if (death := worker_process.last_exit(db)) is None:
        return Blocker("waits for a worker: none is running")
    return Blocker("waits for the worker, which is starting again", death.wait_seconds or None)


def find_slot_blocker(db: Session) -> Blocker | None:
    """Say what holds the slot that the next run waits for."""
    live, other = runs.list_live(db), _slot_taker(db)
    answers = loaded_model.SLOTS_USED if loaded_model.current(db) else 0
    if sum(run.slots for run in live) + bool(other) + answers < workers.count_slots(db):
        export = concurrent_exports.blocking_export(db, workers.training_hardware(db))
        why = f"waits for export {export.id} to end: both may not fit into memory" if export else ""
        return Blocker(why) if export else None
    if live:
        return _run_blocker(live)
    if other is not None:
        return _work_blocker(other)
    return Blocker("waits for the model that answers to leave")


def explain_work_wait(db: Session, one: Export | Task) -> Wait | None:
    """Say why an export or a task waits; None for one that does not."""
    if one.status is not TaskStatus.QUEUED:
        return None
    obstacle = find_worker_blocker(db)
    if obstacle is None and isinstance(one, Export):
        is_small = concurrent_exports.is_small(db, one, workers.training_hardware(db))
        obstacle = _export_blocker(db, one) if is_small else _training_blocker(db)
    elif obstacle is None:
        assert isinstance(one, Task)  # noqa: S101 -- there is no other work
        obstacle = _training_blocker(db) if tasks.needs_device(one) else _task_blocker(db)
    obstacle = obstacle or Blocker(SOON)
    return Wait(reason=obstacle.reason, since=one.created_at, seconds=obstacle.seconds)


def _run_blocker(live: Sequence[Run]) -> Blocker:
    ends = [run_progress.measure(run).eta_seconds for run in live]
    known = [end for end in ends if end is not None]
    seconds = min(known) if len(known) == len(ends) else None
    if len(live) > 1:
        return Blocker(f"waits for one of {len(live)} runs to end", seconds)
    return Blocker(f"waits for run {live[0].id} to end", seconds)


def _work_blocker(one: TaskBase) -> Blocker:
    if isinstance(one, Export):
        return Blocker(f"waits for export {one.id} to end")
    return Blocker(f"waits for task {one.id} to end")


def _training_blocker(db: Session) -> Blocker | None:
    """Say what comes before work that needs a slot: every run, then earlier work."""
    if first := queue.next_run(db):
        return Blocker(f"waits for run {first.id} to start and end: training goes first")
    return find_slot_blocker(db)


def _export_blocker(db: Session, export: Export) -> Blocker | None:
    """Say what keeps a small export from being made beside training: another, or memory."""
    hardware = workers.training_hardware(db)
    if going := concurrent_exports.list_beside_training(db, hardware):
        return _work_blocker(going[0])
    free = free_memory()
    if concurrent_exports.fits_in_memory(db, export, hardware, free):
        return None
    room, needed = (
        concurrent_exports.remaining_memory(db, hardware, free),
        concurrent_exports.export_bytes(db, export) or 0,
    )
    if room.unestimated_run is not None:
        return Blocker(f"waits for run {room.unestimated_run.id} to end: its memory is not known")
    left = max(0, room.free_bytes) / 1e9
    return Blocker(f"waits for memory: it may need {needed / 1e9:,.1f} GB; {left:,.1f} GB are left")


def _task_blocker(db: Session) -> Blocker | None:
    going = [one for one in _running_work(db, Task) if not tasks.needs_device(one)]
    return _work_blocker(going[0]) if len(going) >= concurrent_exports.MAX_TASKS else None


def _slot_taker(db: Session) -> TaskBase | None:
    """Return the export or task that has a slot which a run could have."""
    hardware = workers.training_hardware(db)
    exports = [
        one for one in _running_work(db, Export) if concurrent_exports.takes_slot(db, one, hardware)
    ]
    running_tasks = [one for one in _running_work(db, Task) if tasks.needs_device(one)]
    return next(iter([*exports, *running_tasks]), None)


def _running_work(db: Session, table: type[W]) -> list[W]:
    return [
        one for one in task_lifecycle.list_unfinished(db, table) if one.status is TaskStatus.RUNNING
    ]
