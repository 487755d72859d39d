"""The queue as JSON."""

from fastapi import APIRouter

from studio.services import forecast, runs, workers
from studio.web.api.calls import Call
from studio.web.api.shapes import Out, RunBrief, run_brief
from studio.web.deps import DB

router = APIRouter(route_class=Call, prefix="/api/v1/queue", tags=["queue"])


class WaitOut(RunBrief):
    reason: str
    """Why it waits."""
    starts_in_seconds: float | None
    """Estimated from the runs that train and from earlier runs of its experiment."""


class QueueOut(Out):
    slots: int
    """How many runs may train at once, over all workers known."""
    used: int
    live: list[RunBrief]
    waiting: list[WaitOut]
    """In the order in which they will start."""


def _wait(db: DB, wait: forecast.Wait) -> WaitOut:
    brief = run_brief(db, wait.run).model_dump()
    return WaitOut(**brief, reason=wait.reason, starts_in_seconds=wait.seconds)


@router.get("")
def show(db: DB) -> QueueOut:
    live = runs.live(db)
    return QueueOut(
        slots=workers.slots(db),
        used=len(live),
        live=[run_brief(db, run) for run in live],
        waiting=[_wait(db, one) for one in forecast.waits(db)],
    )
