"""REST routes of tasks: progress, cancel, retry, log."""

from datetime import datetime
from typing import Any

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from studio.db.states import TaskStatus
from studio.db.tasks import Task
from studio.services.queue import overview, task_results
from studio.services.runs import artifacts
from studio.services.tasks import tasks
from studio.web.api.conventions.api_route import ApiRoute
from studio.web.api.conventions.schemas import Id, Out, WaitingOut, waiting_out
from studio.web.http.deps import DB, Config

router = APIRouter(route_class=ApiRoute, prefix="/api/v1/chores", tags=["chores"])

LOG_LINES = 500


class TaskErrorOut(Out):
    """Why a task failed."""

    code: str
    message: str
    hint: str


class TaskOut(Out):
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
    waiting: WaitingOut | None = None
    """Why it is waiting, while it is; only when a task is requested by its id."""
    created_at: datetime
    finished_at: datetime | None


@router.get("/{chore_id}")
def show(chore_id: Id, db: DB) -> TaskOut:
    task = tasks.get(db, chore_id)
    return task_out(task).model_copy(
        update={"waiting": waiting_out(overview.explain_work_wait(db, task))}
    )


@router.delete("/{chore_id}")
def cancel(chore_id: Id, db: DB) -> TaskOut:
    """Cancel a task: its process is stopped and its files are deleted."""
    return task_out(task_results.cancel(db, chore_id))


@router.post("/{chore_id}/again")
def again(chore_id: Id, db: DB) -> TaskOut:
    """Retry a failed task. What it has already downloaded is not downloaded again."""
    task = tasks.get(db, chore_id)
    tasks.retry(task)
    return task_out(task)


@router.get("/{chore_id}/log", response_class=PlainTextResponse)
def log(chore_id: Id, db: DB, config: Config) -> str:
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
