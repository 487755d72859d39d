"""When queued runs will start, from the progress of live runs and the duration of earlier ones."""

import heapq
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlmodel import Session, col, func, select

from studio.db.states import RunStatus
from studio.db.tables import Run, RunEvent
from studio.services.estimates import run_progress
from studio.services.queue import queue
from studio.services.queue.wait_reasons import (
    SOON,
    Blocker,
    Wait,
    find_slot_blocker,
    find_worker_blocker,
)
from studio.services.runs import runs
from studio.services.workers import workers

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


def estimate_waits(db: Session) -> list[RunWait]:
    """Return for each queued run why it waits, and an estimate of how long."""
    slots, waiting = workers.count_slots(db), queue.list_waiting(db)
    peers = Counter(run.priority for run in waiting)
    positions = Counter[int]()
    slot_blocker = find_slot_blocker(db)
    free = (
        _seconds_until_free(runs.list_live(db), slots)
        if slot_blocker is None or slot_blocker.seconds is not None
        else []
    )
    blocker = find_worker_blocker(db) or slot_blocker or Blocker(SOON)
    since = _requeued_at(db, waiting)
    waits = []
    for run in waiting:
        own_reason = _reason_of_run(run, slots)
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
        duration = _median_seconds(db, run)
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


def _median_seconds(db: Session, run: Run) -> float | None:
    query = select(Run).where(
        Run.experiment_id == run.experiment_id, Run.status == RunStatus.SUCCEEDED
    )
    earlier = db.exec(query.order_by(col(Run.id).desc()).limit(_MAX_EARLIER_RUNS)).all()
    durations = [
        seconds for other in earlier if (seconds := run_progress.measure(other).total_seconds)
    ]
    return statistics.median(durations) if durations else None
