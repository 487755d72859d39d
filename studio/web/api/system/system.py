"""REST routes of the studio itself: health, tasks, notifications, metrics."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import PlainTextResponse
from pydantic import Field

import studio
from studio.db.outbox import Channel, Delivery, DeliveryStatus
from studio.db.outbox import DeliveryAttempt as TryRow
from studio.db.states import TaskStatus
from studio.db.tasks import Task
from studio.errors import UnavailableError
from studio.services.notifications import deliveries
from studio.services.operations import prometheus_metrics
from studio.services.queue import overview, task_results
from studio.services.runs import artifacts
from studio.services.tasks import tasks
from studio.services.workers import workers
from studio.web.api import conventions as api
from studio.web.http.deps import DB, Config, ConfigWithSecrets

router = APIRouter(route_class=api.ApiRoute, prefix="/api/v1", tags=["system"])


tasks_router = APIRouter(route_class=api.ApiRoute, prefix="/api/v1/chores", tags=["chores"])

LOG_LINES = 500


class TaskErrorOut(api.Out):
    """Why a task failed."""

    code: str
    message: str
    hint: str


class TaskOut(api.Out):
    """Background work in its own process."""

    id: int
    kind: str
    title: str
    subject: str
    """What it is for, such as `dataset:3`."""
    status: TaskStatus
    phase: str
    progress: float
    result: dict[str, Any]
    """The result; empty until it has succeeded."""
    error: TaskErrorOut | None
    waiting: api.WaitingOut | None = None
    """Why it is waiting, while it is; only when a task is requested by its id."""
    created_at: datetime
    finished_at: datetime | None


@tasks_router.get("/{chore_id}")
def show(chore_id: api.Id, db: DB) -> TaskOut:
    task = tasks.get(db, chore_id)
    return task_out(task).model_copy(
        update={"waiting": api.waiting_out(overview.explain_work_wait(db, task))}
    )


@tasks_router.delete("/{chore_id}")
def cancel(chore_id: api.Id, db: DB) -> TaskOut:
    """Cancel a task: its process is stopped and its files are deleted."""
    return task_out(task_results.cancel(db, chore_id))


@tasks_router.post("/{chore_id}/again")
def again(chore_id: api.Id, db: DB) -> TaskOut:
    """Retry a failed task. What it has already downloaded is not downloaded again."""
    task = tasks.get(db, chore_id)
    tasks.retry(task)
    return task_out(task)


@tasks_router.get("/{chore_id}/log", response_class=PlainTextResponse)
def log(chore_id: api.Id, db: DB, config: Config) -> str:
    """Return the last lines of the task's log."""
    folder = tasks.task_dir(config.tasks, tasks.get(db, chore_id))
    return "\n".join(artifacts.read_log(folder.log, None, LOG_LINES).lines)


def task_out(chore: Task) -> TaskOut:
    error = {
        "code": chore.error_code,
        "message": chore.error_message,
        "hint": chore.error_hint,
    }
    values = chore.model_dump() | {
        "title": tasks.title(chore),
        "progress": chore.share,
        "error": error if chore.error_code else None,
    }
    return TaskOut.model_validate(values)


notifications_router = APIRouter(route_class=api.ApiRoute, prefix="/api/v1", tags=["notifications"])


class NotificationChannelOut(api.Out):
    channel: Channel
    is_on: bool
    goes_to: str
    """The destination, without secrets."""
    note: str
    how: str
    """What the operator must configure to enable it."""


class DeliveryAttemptOut(api.Out):
    number: int
    began_at: datetime
    ended_at: datetime | None
    """Null while in progress, and permanently if the worker was killed during it."""
    words: str
    """The receiver's response."""


class DeliveryOut(api.Out):
    id: int
    key: str
    """The `webhook-id` sent to the receiver."""
    channel: Channel
    event: str
    """`run.succeeded`, `run.failed`, `run.cancelled`, `run.paused` or `test`."""
    run_id: int | None
    status: DeliveryStatus
    due_at: datetime
    created_at: datetime
    tries: list[DeliveryAttemptOut]


class NewTest(api.Body):
    channel: Annotated[Channel, Field(strict=False)]


@notifications_router.get("/notifications")
def ways(config: ConfigWithSecrets) -> api.Listing[NotificationChannelOut]:
    """List the notification channels as the operator has configured them."""
    return api.Listing[NotificationChannelOut].complete(deliveries.list_channels(config))


@notifications_router.get("/deliveries")
def newest(
    db: DB, after: api.After = None, limit: Annotated[int, Query(ge=1, le=500)] = 50
) -> api.Listing[DeliveryOut]:
    rows = deliveries.newest(db, limit=limit + 1, before=after)
    attempts = deliveries.list_attempts(db, rows)
    return api.make_page(rows, limit, [_delivery_out(row, attempts[row.id or 0]) for row in rows])


@notifications_router.get("/deliveries/{delivery_id}", name="show")
def show_delivery(delivery_id: api.Id, db: DB) -> DeliveryOut:
    delivery = deliveries.get(db, delivery_id)
    return _delivery_out(delivery, deliveries.list_attempts(db, [delivery])[delivery_id])


@notifications_router.post("/deliveries/test", status_code=202)
def test(new: NewTest, db: DB, config: ConfigWithSecrets) -> DeliveryOut:
    """Send a test message through a channel."""
    return _delivery_out(deliveries.send_test(db, config, new.channel), [])


def _delivery_out(delivery: Delivery, tries: list[TryRow]) -> DeliveryOut:
    return DeliveryOut.model_validate(delivery.model_dump() | {"tries": tries})


class Health(api.Out):
    status: Literal["ok", "degraded"]
    """Degraded: it works, except for what the reasons list."""
    reasons: list[str]
    """What the worker cannot do at present, in sentences; empty if healthy."""
    version: str


@router.get("/health")
def health(db: DB) -> Health:
    """Return the health of the studio; 503 with the reason if no worker is running."""
    if not workers.list_alive(db):
        if death := workers.last_exit(db):
            hint = f"The studio is starting another; attempt {death.deaths}."
            raise UnavailableError(death.reason, hint=hint)
        raise UnavailableError("No worker is running.", hint="Start a worker: studio worker")
    reasons = workers.list_failures(db)
    status = "degraded" if reasons else "ok"
    return Health(status=status, reasons=reasons, version=studio.__version__)


metrics_router = APIRouter(include_in_schema=False)


@metrics_router.get("/metrics")
def metrics(request: Request, db: DB) -> PlainTextResponse:
    from studio.web.api.system import prometheus_text  # noqa: PLC0415 -- heavy import

    text = prometheus_text.render_text(prometheus_metrics.collect(db), request.app.state.traffic)
    return PlainTextResponse(text, media_type=prometheus_text.CONTENT_TYPE)
