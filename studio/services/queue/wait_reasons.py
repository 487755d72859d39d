"""Why a run, an export or a task waits: a reason, since when, and for how long."""

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

SOON = "about to start"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Something that waits."""

    reason: str
    """Why it waits, as text."""
    since: datetime
    seconds: float | None = None
    """Estimated seconds until it starts; None if unknown."""

    @property
    def waited_seconds(self) -> float:
        return run_progress.elapsed_seconds(self.since, datetime.now(UTC))


@dataclass(frozen=True, slots=True)
class Blocker:
    """What prevents the next in line from starting."""

    reason: str
    seconds: float | None = None


def find_worker_blocker(db: Session) -> Blocker | None:
    """Return a blocker if no worker is running, and whether one is about to start."""
    if workers.list_alive(db):
        return None
    if (death := worker_process.last_exit(db)) is None:
        return Blocker("waiting for a worker: none is running")
    return Blocker("waiting for the worker, which is restarting", death.wait_seconds or None)


def find_slot_blocker(db: Session) -> Blocker | None:
    """Return what occupies the slot that the next run waits for."""
    live, other = runs.list_live(db), _slot_taker(db)
    answers = loaded_model.SLOTS_USED if loaded_model.current(db) else 0
    if sum(run.slots for run in live) + bool(other) + answers < workers.count_slots(db):
        export = concurrent_exports.blocking_export(db, workers.training_hardware(db))
        why = f"waiting for export {export.id}: both may not fit into memory" if export else ""
        return Blocker(why) if export else None
    if live:
        return _run_blocker(live)
    if other is not None:
        return _work_blocker(other)
    return Blocker("waiting for the loaded model to be unloaded")


def explain_work_wait(db: Session, one: Export | Task) -> Wait | None:
    """Return why an export or a task waits, or None if it is not queued."""
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
        return Blocker(f"waiting for one of {len(live)} runs to end", seconds)
    return Blocker(f"waiting for run {live[0].id} to end", seconds)


def _work_blocker(one: TaskBase) -> Blocker:
    if isinstance(one, Export):
        return Blocker(f"waiting for export {one.id} to end")
    return Blocker(f"waiting for task {one.id} to end")


def _training_blocker(db: Session) -> Blocker | None:
    """Return what comes before work that needs a slot: every run, then earlier work."""
    if first := queue.next_run(db):
        return Blocker(f"waiting for run {first.id} to start and end: training goes first")
    return find_slot_blocker(db)


def _export_blocker(db: Session, export: Export) -> Blocker | None:
    """Return what prevents a small export from running during training: another, or memory."""
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
        return Blocker(
            f"waiting for run {room.unestimated_run.id} to end: its memory use is unknown"
        )
    left = max(0, room.free_bytes) / 1e9
    return Blocker(f"waiting for memory: may need {needed / 1e9:,.1f} GB, {left:,.1f} GB available")


def _task_blocker(db: Session) -> Blocker | None:
    going = [one for one in _running_work(db, Task) if not tasks.needs_device(one)]
    return _work_blocker(going[0]) if len(going) >= concurrent_exports.MAX_TASKS else None


def _slot_taker(db: Session) -> TaskBase | None:
    """Return the export or task that occupies a slot a run could use."""
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
