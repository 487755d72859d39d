"""A chore on screen: how far it is, what went wrong, and a way to call it off."""

from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from studio.db.tasks import Task
from studio.services.queue import task_results, wait_reasons
from studio.services.tasks import tasks
from studio.web.http.deps import DB
from studio.web.rendering.render import asked_by_htmx, block, go, page

router = APIRouter(prefix="/chores", include_in_schema=False)

ChoreId = Annotated[int, Path(ge=1, lt=2**63)]
Then = Annotated[str, Query(pattern=r"^(/[^/\\].*)?$", max_length=500)]
"""An address of ours, or nothing."""


@router.get("/{chore_id}")
def show(request: Request, chore_id: ChoreId, db: DB, then: Then = "") -> Response:
    chore = tasks.get(db, chore_id)
    if asked_by_htmx(request):
        return block(request, "queue/task.html", "chore", **_about(db, chore, then))
    return page(request, "queue/task.html", **_about(db, chore, then))


@router.post("/{chore_id}/cancel")
def cancel(request: Request, chore_id: ChoreId, db: DB, then: Then = "") -> Response:
    chore = task_results.cancel(db, chore_id)
    return _shown(request, db, chore, then)


@router.post("/{chore_id}/again")
def again(request: Request, chore_id: ChoreId, db: DB, then: Then = "") -> Response:
    chore = tasks.get(db, chore_id)
    tasks.retry(chore)
    return _shown(request, db, chore, then)


def _shown(request: Request, db: DB, chore: Task, then: str) -> Response:
    """Show a chore anew: in its place where the page is to stay, else on the page one was on."""
    if asked_by_htmx(request):
        return block(request, "queue/task.html", "chore", **_about(db, chore, then))
    return go(request, _back(request, chore.id or 0))


def _about(db: DB, chore: Task, then: str) -> dict[str, Any]:
    return {"chore": chore, "then": then, "wait": wait_reasons.explain_work_wait(db, chore)}


def _back(request: Request, chore_id: int) -> str:
    """Return the page that the browser was on; only ever one of ours."""
    path = urlsplit(request.headers.get("referer", "")).path.lstrip("/")
    return f"/{path}" if path else f"/chores/{chore_id}"
