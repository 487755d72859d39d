"""When waiting runs will start: from the runs that train now, and from how long their like took."""

import heapq
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sqlmodel import Session, col, select

from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.services import progress, queue, runs, workers

_LIKE = 5
"""How many earlier runs of an experiment tell how long the next will take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One run that waits."""

    run: Run
    place: int
    """Among those of its priority, counted from one."""
    places: int
    """How many those are."""
    reason: str
    seconds: float | None
    """Until it starts, estimated; None where nothing tells."""


def waits(db: Session) -> list[Wait]:
    """Tell of each waiting run why it waits, and estimate for how long."""
    slots, waiting = workers.slots(db), queue.waiting(db)
    peers = Counter(run.priority for run in waiting)
    place = Counter[int]()
    free = _free_at(runs.live(db), slots)
    told = []
    for run in waiting:
        reason = _reason(run, slots)
        seconds = free[0] if free and not reason else None
        place[run.priority] += 1
        told.append(
            Wait(
                run=run,
                place=place[run.priority],
                places=peers[run.priority],
                reason=reason or "waits for a slot",
                seconds=seconds,
            )
        )
        if reason:
            continue
        lasts = _usual_seconds(db, run)
        # Where one cannot be foretold, neither can those behind it.
        free = [] if seconds is None or lasts is None else _after(free, seconds + lasts)
    return told


def _reason(run: Run, slots: int) -> str:
    if run.is_held:
        return "held by you"
    if not slots:
        return "no worker is there"
    return f"needs {run.slots} slots, there are {slots}" if run.slots > slots else ""


def _free_at(live: Sequence[Run], slots: int) -> list[float]:
    """Return in how many seconds each slot is free, soonest first; empty where that is unknown."""
    ends = [progress.of(run).eta_seconds for run in live]
    known = [end for end in ends if end is not None]
    if len(known) < len(ends):
        return []
    free = [*known, *[0.0] * (slots - len(known))]
    heapq.heapify(free)
    return free


def _after(free: list[float], ends: float) -> list[float]:
    heapq.heapreplace(free, ends)
    return free


def _usual_seconds(db: Session, run: Run) -> float | None:
    like = select(Run).where(
        Run.experiment_id == run.experiment_id, Run.status == RunStatus.SUCCEEDED
    )
    earlier = db.exec(like.order_by(col(Run.id).desc()).limit(_LIKE)).all()
    took = [seconds for one in earlier if (seconds := progress.of(one).total_seconds)]
    return statistics.median(took) if took else None
