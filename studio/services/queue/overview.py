"""What runs or waits: why, since when, and for how long.

The start of a queued run is estimated from the progress of live runs and earlier durations.
"""

import heapq
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from sqlmodel import Session, col, func, select

from studio.db.states import RunStatus, TaskStatus
from studio.db.tables import Run, RunEvent
from studio.db.tasks import Export, Task, TaskBase
from studio.hardware import free_memory
from studio.services.estimates import run_progress
from studio.services.models import endpoint_uses, loaded_model
from studio.services.queue import concurrent_exports, queue
from studio.services.queue.gpu_pools import GpuPools
from studio.services.runs import runs
from studio.services.tasks import tasks
from studio.services.workers import workers

W = TypeVar("W", bound=TaskBase)

SOON = "about to start"
NO_WORKING_GPU = "waiting for a GPU that works"


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
    if (worker_exit := workers.last_exit(db)) is None:
        return Blocker("waiting for a worker: none is running")
    return Blocker("waiting for the worker, which is restarting", worker_exit.wait_seconds or None)


def find_slot_blocker(db: Session) -> Blocker | None:
    """Return what occupies the slot that the next run waits for."""
    work = _slot_taker(db)
    others = _model_slots(db) + bool(work)
    if runs.count_live_slots(db) + others < workers.count_slots(db):
        export = concurrent_exports.blocking_export(db, workers.training_hardware(db))
        reason = f"waiting for export {export.id}: both may not fit into memory" if export else ""
        return Blocker(reason) if export else None
    if live := runs.list_live_progress(db):
        return _run_blocker(live)
    if work is not None:
        return _work_blocker(work)
    if serving := endpoint_uses.list_in_slots(db):
        return Blocker(f"waiting for the endpoint {serving[0].name} to finish its answers")
    return Blocker("waiting for the loaded model to be unloaded")


def find_work_blocker(db: Session) -> Blocker | None:
    """Return what work other than runs waits for before it gets a slot: one, or a GPU for it."""
    hardware = workers.whole_hardware(db)
    is_broken = hardware.device == "cuda" and not hardware.working_gpus
    return Blocker(NO_WORKING_GPU) if is_broken else find_slot_blocker(db)


def _model_slots(db: Session) -> int:
    """Return how many slots the loaded model and the endpoints use."""
    loaded = loaded_model.SLOTS_USED if loaded_model.current(db) else 0
    return loaded + endpoint_uses.SLOTS_USED * len(endpoint_uses.list_in_slots(db))


def explain_work_wait(db: Session, work: Export | Task) -> Wait | None:
    """Return why an export or a task waits, or None if it is not queued."""
    if work.status is not TaskStatus.QUEUED:
        return None
    blocker = find_worker_blocker(db)
    if blocker is None and isinstance(work, Export):
        is_small = concurrent_exports.is_small(db, work, workers.training_hardware(db))
        blocker = _export_blocker(db, work) if is_small else _training_blocker(db)
    elif blocker is None:
        assert isinstance(work, Task)  # noqa: S101 -- there is no other work
        blocker = _training_blocker(db) if tasks.needs_device(work) else _task_blocker(db, work)
    blocker = blocker or Blocker(SOON)
    return Wait(reason=blocker.reason, since=work.created_at, seconds=blocker.seconds)


def _run_blocker(live: Sequence[Run]) -> Blocker:
    ends = [run_progress.measure(run).eta_seconds for run in live]
    known_ends = [end for end in ends if end is not None]
    seconds = min(known_ends) if len(known_ends) == len(ends) else None
    if len(live) > 1:
        return Blocker(f"waiting for one of {len(live)} runs to end", seconds)
    return Blocker(f"waiting for run {live[0].id} to end", seconds)


def _work_blocker(work: TaskBase) -> Blocker:
    if isinstance(work, Export):
        return Blocker(f"waiting for export {work.id} to end")
    return Blocker(f"waiting for task {work.id} to end")


def _training_blocker(db: Session) -> Blocker | None:
    """Return what comes before work that needs a slot: every run, then earlier work."""
    if first := queue.next_run(db):
        return Blocker(f"waiting for run {first.id} to start and end: training goes first")
    return find_work_blocker(db)


def _export_blocker(db: Session, export: Export) -> Blocker | None:
    """Return what prevents a small export from running during training: another, or memory."""
    hardware = workers.training_hardware(db)
    if running := concurrent_exports.list_beside_training(db, hardware):
        return _work_blocker(running[0])
    free = free_memory()
    if concurrent_exports.fits_in_memory(db, export, hardware, free):
        return None
    remaining, needed = (
        concurrent_exports.remaining_memory(db, hardware, free),
        concurrent_exports.export_bytes(db, export) or 0,
    )
    if remaining.unestimated_run is not None:
        return Blocker(
            f"waiting for run {remaining.unestimated_run.id} to end: its memory use is unknown"
        )
    available = max(0, remaining.free_bytes) / 1e9
    return Blocker(
        f"waiting for memory: may need {needed / 1e9:,.1f} GB, {available:,.1f} GB available"
    )


def _task_blocker(db: Session, task: Task) -> Blocker | None:
    lane = tasks.lane(task)
    running = [
        other
        for other in _running_work(db, Task)
        if not tasks.needs_device(other) and tasks.lane(other) == lane
    ]
    is_full = len(running) >= concurrent_exports.MAX_BY_LANE[lane]
    return _work_blocker(running[0]) if is_full else None


def _slot_taker(db: Session) -> TaskBase | None:
    """Return the export or task that occupies a slot a run could use."""
    hardware = workers.training_hardware(db)
    exports = [
        work
        for work in _running_work(db, Export)
        if concurrent_exports.takes_slot(db, work, hardware)
    ]
    running_tasks = [work for work in _running_work(db, Task) if tasks.needs_device(work)]
    return next(iter([*exports, *running_tasks]), None)


def _running_work(db: Session, table: type[W]) -> list[W]:
    return [work for work in tasks.list_unfinished(db, table) if work.status is TaskStatus.RUNNING]


_MAX_EARLIER_RUNS = 5
"""How many earlier runs of an experiment predict the duration of the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWait(Wait):
    """A queued run."""

    run: Run
    place: int
    """Position among the queued runs of its priority, counted from 1."""
    places: int
    """How many queued runs have its priority."""


def estimate_waits(db: Session, *, limit: int | None = None) -> list[RunWait]:
    """Return for each queued run, or for the next ones, why it waits, and roughly how long."""
    slots, waiting = workers.count_slots(db), queue.list_waiting(db, limit=limit)
    peers = queue.count_waiting_by_priority(db)
    durations: dict[int, float | None] = {}
    positions = Counter[int]()
    slot_blocker = find_slot_blocker(db)
    free = (
        _seconds_until_free(runs.list_live_progress(db), slots)
        if slot_blocker is None or slot_blocker.seconds is not None
        else []
    )
    blocker = find_worker_blocker(db) or slot_blocker or Blocker(SOON)
    pools = _free_pools(db) if slot_blocker is None else None
    since = _requeued_at(db, waiting)
    waits = []
    for run in waiting:
        own_reason = _reason_of_run(run, slots) or _gpu_reason(run, pools)
        seconds = free[0] if free and slots and not own_reason else None
        positions[run.priority] += 1
        waits.append(
            RunWait(
                run=run,
                place=positions[run.priority],
                places=peers[run.priority],
                reason=own_reason or blocker.reason,
                since=since.get(run.id or 0, run.created_at),
                seconds=seconds,
            )
        )
        if own_reason:
            continue
        if slots:
            blocker = Blocker(f"waiting behind run {run.id}")
        if run.experiment_id not in durations:
            durations[run.experiment_id] = _median_seconds(db, run.experiment_id)
        duration = durations[run.experiment_id]
        # If the end of one is unknown, so are the starts behind it.
        free = [] if seconds is None or duration is None else _occupy_slot(free, seconds + duration)
    return waits


def estimate_wait(db: Session, run: Run) -> RunWait | None:
    """Return why a run waits, or None if it is not queued."""
    if run.status is not RunStatus.QUEUED:
        return None
    return next((wait for wait in estimate_waits(db) if wait.run.id == run.id), None)


def _reason_of_run(run: Run, slots: int) -> str:
    if run.is_held:
        return "held by you"
    return f"needs {run.slots} slots, only {slots} exist" if 0 < slots < run.slots else ""


def _free_pools(db: Session) -> GpuPools | None:
    """Return the GPUs that runs may take; None where there is one kind at most, so one queue."""
    hardware = workers.whole_hardware(db)
    if hardware.device == "cpu" or (len(hardware.kinds) == 1 and hardware.working_gpus):
        return None
    live: Sequence[Run | TaskBase] = [*runs.list_live_progress(db), *_running_work(db, Export)]
    used = {work.gpu for work in [*live, *_running_work(db, Task)]}
    free = [gpu.index for gpu in hardware.gpus if gpu.index not in used]
    return GpuPools(hardware=hardware, free=free)


def _gpu_reason(run: Run, pools: GpuPools | None) -> str:
    """Return which GPUs a run waits for that others do not; empty if one is free for it."""
    if pools is None or pools.find_free(run):
        return ""
    if not pools.kinds:
        return NO_WORKING_GPU
    names = dict.fromkeys(kind.name for kind in pools.choose_kinds(run))
    return f"waiting for a GPU that can train it: {', '.join(names)}"


def _requeued_at(db: Session, waiting: Sequence[Run]) -> dict[int, datetime]:
    """Return when runs that had started before were queued again."""
    retried = [run.id for run in waiting if run.attempt]
    query = select(RunEvent.run_id, func.max(RunEvent.at)).where(
        col(RunEvent.run_id).in_(retried), RunEvent.kind == RunStatus.QUEUED.value
    )
    return dict(db.exec(query.group_by(col(RunEvent.run_id))).all())


def _seconds_until_free(live: Sequence[Run], slots: int) -> list[float]:
    """Return the seconds until each slot is free, soonest first; empty if unknown."""
    ends = [run_progress.measure(run).eta_seconds for run in live]
    known_ends = [end for end in ends if end is not None]
    if len(known_ends) < len(ends):
        return []
    free = [*known_ends, *[0.0] * (slots - len(known_ends))]
    heapq.heapify(free)
    return free


def _occupy_slot(free: list[float], end: float) -> list[float]:
    heapq.heapreplace(free, end)
    return free


def _median_seconds(db: Session, experiment_id: int) -> float | None:
    query = select(Run).where(Run.experiment_id == experiment_id, Run.status == RunStatus.SUCCEEDED)
    earlier = db.exec(query.order_by(col(Run.id).desc()).limit(_MAX_EARLIER_RUNS)).all()
    durations = [
        seconds for other in earlier if (seconds := run_progress.measure(other).total_seconds)
    ]
    return statistics.median(durations) if durations else None


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
        *(_export_item(db, work) for work in tasks.list_unfinished(db, Export)),
        *(_task_item(db, work) for work in tasks.list_unfinished(db, Task)),
    ]
    return sorted(items, key=lambda other: other.work.status is TaskStatus.QUEUED)


def count_all_used_slots(db: Session) -> int:
    """Return how many slots are in use by runs, other work, the loaded model and endpoints."""
    others = sum(item.takes_slot for item in list_work(db))
    return runs.count_live_slots(db) + others + _model_slots(db)


def _export_item(db: Session, export: Export) -> WorkItem:
    run = db.get(Run, export.run_id)
    return WorkItem(
        work=export,
        title="Export",
        about=f"of {run.name if run else 'run'} #{export.run_id}, {export.kind} in {export.dtype}",
        takes_slot=export.status is TaskStatus.RUNNING
        and concurrent_exports.takes_slot(db, export, workers.training_hardware(db)),
        wait=explain_work_wait(db, export),
        owner_id=run.owner_id if run else None,
    )


def _task_item(db: Session, task: Task) -> WorkItem:
    return WorkItem(
        work=task,
        title=tasks.title(task),
        about=tasks.describe(task),
        takes_slot=task.status is TaskStatus.RUNNING and tasks.needs_device(task),
        wait=explain_work_wait(db, task),
        owner_id=task.owner_id,
    )
