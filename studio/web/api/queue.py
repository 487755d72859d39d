"""The queue as JSON."""

from fastapi import APIRouter

from studio.services import queue, runs
from studio.web.api.shapes import Out, RunBrief, run_brief
from studio.web.deps import DB

router = APIRouter(prefix="/api/v1/queue", tags=["queue"])


class QueueOut(Out):
    slots: int
    """How many runs may train at once, over all workers known."""
    used: int
    live: list[RunBrief]
    waiting: list[RunBrief]
    """In the order in which they will start."""


@router.get("")
def show(db: DB) -> QueueOut:
    live = runs.live(db)
    return QueueOut(
        slots=queue.slots(db),
        used=len(live),
        live=[run_brief(db, run) for run in live],
        waiting=[run_brief(db, run) for run in queue.waiting(db)],
    )
