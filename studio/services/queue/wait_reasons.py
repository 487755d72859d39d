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
        return run_progress.seconds(self.since, datetime.now(UTC))


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What keeps the next in line from starting."""

    reason: str
    seconds: float | None = None


def worker_is_away(db: Session) -> Obstacle | None:
    """Say that no worker is there to start anything, and whether one will be."""
    if workers.heard_of(db):
        return None
    if (death := worker_process.death(db)) is None:
        return Obstacle("waits for a worker: none is running")
    return Obstacle("waits for the worker, which is starting again", death.wait_seconds or None)


def slots_are_taken(db: Session) -> Obstacle | None:
    """Say what holds the slot that the next run waits for."""
    live, other = runs.live(db), _slot_taker(db)
    answers = loaded_model.SLOTS if loaded_model.now(db) else 0
    if sum(run.slots for run in live) + bool(other) + answers < workers.slots(db):
        export = concurrent_exports.holding_up(db, workers.machine(db))
        why = f"waits for export {export.id} to end: both may not fit into memory" if export else ""
        return Obstacle(why) if export else None
    if live:
        return _until_end(live)
    if other is not None:
        return _until_work_ends(other)
    return Obstacle("waits for the model that answers to leave")


def of_work(db: Session, one: Export | Task) -> Wait | None:
    """Say why an export or a task waits; None for one that does not."""
    if one.status is not TaskStatus.QUEUED:
        return None
    obstacle = worker_is_away(db)
    if obstacle is None and isinstance(one, Export):
        is_small = concurrent_exports.is_small(db, one, workers.machine(db))
        obstacle = _beside(db, one) if is_small else _after_training(db)
    elif obstacle is None:
        assert isinstance(one, Task)  # noqa: S101 -- there is no other work
        obstacle = _after_training(db) if tasks.needs_device(one) else _among_tasks(db)
    obstacle = obstacle or Obstacle(SOON)
    return Wait(reason=obstacle.reason, since=one.created_at, seconds=obstacle.seconds)


def _until_end(live: Sequence[Run]) -> Obstacle:
    ends = [run_progress.of(run).eta_seconds for run in live]
    known = [end for end in ends if end is not None]
    seconds = min(known) if len(known) == len(ends) else None
    if len(live) > 1:
        return Obstacle(f"waits for one of {len(live)} runs to end", seconds)
    return Obstacle(f"waits for run {live[0].id} to end", seconds)


def _until_work_ends(one: TaskBase) -> Obstacle:
    if isinstance(one, Export):
        return Obstacle(f"waits for export {one.id} to end")
    return Obstacle(f"waits for task {one.id} to end")


def _after_training(db: Session) -> Obstacle | None:
    """Say what comes before work that needs a slot: every run, then earlier work."""
    if first := queue.first(db):
        return Obstacle(f"waits for run {first.id} to start and end: training goes first")
    return slots_are_taken(db)


def _beside(db: Session, export: Export) -> Obstacle | None:
    """Say what keeps a small export from being made beside training: another, or memory."""
    hardware = workers.machine(db)
    if going := concurrent_exports.beside(db, hardware):
        return _until_work_ends(going[0])
    free = free_memory()
    if concurrent_exports.fits(db, export, hardware, free):
        return None
    room, needed = (
        concurrent_exports.room(db, hardware, free),
        concurrent_exports.export_bytes(db, export) or 0,
    )
    if room.unknown is not None:
        return Obstacle(f"waits for run {room.unknown.id} to end: its memory is not known")
    left = max(0, room.left) / 1e9
    return Obstacle(
        f"waits for memory: it may need {needed / 1e9:,.1f} GB; {left:,.1f} GB are left"
    )


def _among_tasks(db: Session) -> Obstacle | None:
    going = [one for one in _running(db, Task) if not tasks.needs_device(one)]
    return _until_work_ends(going[0]) if len(going) >= concurrent_exports.TASKS else None


def _slot_taker(db: Session) -> TaskBase | None:
    """Return the export or task that has a slot which a run could have."""
    hardware = workers.machine(db)
    exports = [
        one for one in _running(db, Export) if concurrent_exports.takes_slot(db, one, hardware)
    ]
    running_tasks = [one for one in _running(db, Task) if tasks.needs_device(one)]
    return next(iter([*exports, *running_tasks]), None)


def _running(db: Session, table: type[W]) -> list[W]:
    return [one for one in task_lifecycle.unfinished(db, table) if one.status is TaskStatus.RUNNING]
