"""REST routes of the queue and of the loaded model."""

from datetime import datetime

from fastapi import APIRouter

from studio.db.tasks import LoadedModel
from studio.services.models import loaded_model
from studio.services.queue import overview
from studio.services.runs import runs
from studio.services.workers import workers
from studio.web.api.conventions.api_route import ApiRoute
from studio.web.api.conventions.schemas import Out, RunBrief, run_brief
from studio.web.http.deps import DB

router = APIRouter(route_class=ApiRoute, prefix="/api/v1/queue", tags=["queue"])


class WaitingRunOut(RunBrief):
    reason: str
    """Why it is waiting."""
    waiting_since: datetime
    starts_in_seconds: float | None
    """Estimated from training runs and from earlier runs of its experiment."""


class LoadedOut(Out):
    """The model that is loaded for inference."""

    model: str
    """The name in the latest request; empty before the first request."""
    computed_in: str
    """The number format of its latest answer, as measured; empty before the first answer."""
    since: datetime
    leaves_in_seconds: float | None
    """Seconds until it is unloaded if idle; null while it answers or is being unloaded."""
    is_leaving: bool
    """Whether it is unloaded as soon as the current answer is complete."""
    slots: int


class QueueOut(Out):
    slots: int
    """How many runs can train at once, over all known workers."""
    used: int
    """Slots used by training runs, by tasks and exports, and by a loaded model."""
    live: list[RunBrief]
    loaded: LoadedOut | None
    """The model loaded for inference. It is unloaded when a run waits for its slot."""
    waiting: list[WaitingRunOut]
    """In starting order."""


def _wait_out(db: DB, wait: overview.RunWait) -> WaitingRunOut:
    brief = run_brief(db, wait.run).model_dump()
    return WaitingRunOut(
        **brief,
        reason=wait.reason,
        waiting_since=wait.since,
        starts_in_seconds=wait.seconds,
    )


@router.get("")
def show(db: DB) -> QueueOut:
    live, loaded = runs.list_live(db), loaded_model.current(db)
    return QueueOut(
        slots=workers.count_slots(db),
        used=overview.count_all_used_slots(db),
        live=[run_brief(db, run) for run in live],
        loaded=None if loaded is None else _loaded_out(loaded),
        waiting=[_wait_out(db, wait) for wait in overview.estimate_waits(db)],
    )


@router.delete("/loaded")
def stop(db: DB) -> LoadedOut:
    """Unload the model loaded for inference, once the current answer is complete."""
    return _loaded_out(loaded_model.request_unload(db))


def _loaded_out(row: LoadedModel) -> LoadedOut:
    remaining = loaded_model.time_left(row)
    return LoadedOut(
        model=row.model,
        computed_in=row.computed_in,
        since=row.since,
        leaves_in_seconds=None if remaining is None else remaining.total_seconds(),
        is_leaving=row.is_leaving,
        slots=loaded_model.SLOTS_USED,
    )
