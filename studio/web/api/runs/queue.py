"""The queue as JSON."""

from datetime import datetime

from fastapi import APIRouter

from studio.db.tasks import LoadedModel
from studio.services.models import loaded_model
from studio.services.queue import background_overview, queue_eta
from studio.services.runs import runs
from studio.services.workers import workers
from studio.web.api.conventions.api_route import ApiRoute
from studio.web.api.conventions.schemas import Out, RunBrief, run_brief
from studio.web.http.deps import DB

router = APIRouter(route_class=ApiRoute, prefix="/api/v1/queue", tags=["queue"])


class WaitingRunOut(RunBrief):
    reason: str
    """Why it waits."""
    waiting_since: datetime
    starts_in_seconds: float | None
    """Estimated from the runs that train and from earlier runs of its experiment."""


class LoadedOut(Out):
    """The model that is loaded to answer."""

    model: str
    """The name it was asked by last; empty until somebody is heard."""
    computed_in: str
    """The number format of its last answer, as measured; empty until it has given one."""
    since: datetime
    leaves_in_seconds: float | None
    """Until it goes unless it is asked; null while it answers, and once it is to leave."""
    is_leaving: bool
    """Whether it goes as soon as the answer at hand is whole."""
    slots: int


class QueueOut(Out):
    slots: int
    """How many runs may train at once, over all workers known."""
    used: int
    """By runs that train, by other work, and by a model that is loaded to answer."""
    live: list[RunBrief]
    loaded: LoadedOut | None
    """The model that is loaded to answer. It leaves when a run waits for its slot."""
    waiting: list[WaitingRunOut]
    """In the order in which they will start."""


def _wait_out(db: DB, wait: queue_eta.RunWait) -> WaitingRunOut:
    brief = run_brief(db, wait.run).model_dump()
    return WaitingRunOut(
        **brief,
        reason=wait.reason,
        waiting_since=wait.since,
        starts_in_seconds=wait.seconds,
    )


@router.get("")
def show(db: DB) -> QueueOut:
    live, told = runs.list_live(db), loaded_model.current(db)
    return QueueOut(
        slots=workers.count_slots(db),
        used=background_overview.count_used_slots(db),
        live=[run_brief(db, run) for run in live],
        loaded=None if told is None else _loaded_out(told),
        waiting=[_wait_out(db, one) for one in queue_eta.estimate_waits(db)],
    )


@router.delete("/loaded")
def stop(db: DB) -> LoadedOut:
    """Have the model that is loaded to answer leave, once the answer at hand is whole."""
    return _loaded_out(loaded_model.request_unload(db))


def _loaded_out(row: LoadedModel) -> LoadedOut:
    left = loaded_model.time_left(row)
    return LoadedOut(
        model=row.model,
        computed_in=row.computed_in,
        since=row.since,
        leaves_in_seconds=None if left is None else left.total_seconds(),
        is_leaving=row.is_leaving,
        slots=loaded_model.SLOTS_USED,
    )
