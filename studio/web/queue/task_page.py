"""The page of a background task: its progress or error, with cancel and retry."""

from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from studio.db.tasks import Task
from studio.services.queue import task_results, wait_reasons
from studio.services.tasks import tasks
from studio.web.http.deps import DB
from studio.web.rendering.render import block, page, redirect, wants_fragment

router = APIRouter(prefix="/chores", include_in_schema=False)

TaskId = Annotated[int, Path(ge=1, lt=2**63)]
ReturnUrl = Annotated[str, Query(pattern=r"^(/[^/\\].*)?$", max_length=500)]
"""A path of this studio, or empty."""


@router.get("/{chore_id}")
def show(request: Request, chore_id: TaskId, db: DB, then: ReturnUrl = "") -> Response:
    task = tasks.get(db, chore_id)
    if wants_fragment(request):
        return block(request, "queue/task.html", "chore", **_task_context(db, task, then))
    return page(request, "queue/task.html", **_task_context(db, task, then))


@router.post("/{chore_id}/cancel")
def cancel(request: Request, chore_id: TaskId, db: DB, then: ReturnUrl = "") -> Response:
    task = task_results.cancel(db, chore_id)
    return _respond(request, db, task, then)


@router.post("/{chore_id}/again")
def retry(request: Request, chore_id: TaskId, db: DB, then: ReturnUrl = "") -> Response:
    task = tasks.get(db, chore_id)
    tasks.retry(task)
    return _respond(request, db, task, then)


def _respond(request: Request, db: DB, task: Task, then: str) -> Response:
    """Redraw the task in place for htmx, else redirect to the page the request came from."""
    if wants_fragment(request):
        return block(request, "queue/task.html", "chore", **_task_context(db, task, then))
    return redirect(request, _referring_page(request, task.id or 0))


def _task_context(db: DB, task: Task, then: str) -> dict[str, Any]:
    return {"chore": task, "then": then, "wait": wait_reasons.explain_work_wait(db, task)}


def _referring_page(request: Request, chore_id: int) -> str:
    """Return the page the request came from as a path of this studio, else the task's page."""
    path = urlsplit(request.headers.get("referer", "")).path.lstrip("/")
    return f"/{path}" if path else f"/chores/{chore_id}"
