"""The queue, the page of each background task, and the banner with the worker's status."""

from typing import Annotated, Any

from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.responses import Response

from studio.db.tasks import Task
from studio.services.estimates import run_progress
from studio.services.models import endpoint_uses, loaded_model
from studio.services.queue import overview, queue, task_results
from studio.services.runs import run_commands, runs
from studio.services.search.run_table import TableView
from studio.services.tasks import tasks
from studio.services.workers import workers
from studio.web.hardware import hardware_page
from studio.web.http.deps import DB
from studio.web.rendering.render import block, page, redirect, referring_page, wants_fragment
from studio.web.runs import run_table

router = APIRouter(include_in_schema=False)

TaskId = Annotated[int, Path(ge=1, lt=2**63)]
ReturnUrl = Annotated[str, Query(pattern=r"^(/[^/\\].*)?$", max_length=500)]
"""A path of this studio, or empty."""


@router.get("/queue")
def show(request: Request, db: DB) -> Response:
    model = loaded_model.current(db)
    live = runs.list_live(db, limit=run_table.MAX_LIVE)
    waits = overview.estimate_waits(db, limit=run_table.MAX_QUEUED)
    unfinished = runs.count_unfinished(db)
    return page(
        request,
        "queue/show.html",
        live=live,
        more_live=unfinished.running - len(live),
        live_url=run_table.table_url(TableView(query=run_table.LIVE_RUNS)),
        waits=waits,
        more_waiting=unfinished.waiting - len(waits),
        waiting_url=run_table.table_url(TableView(query=run_table.QUEUED_RUNS)),
        workers=workers.list_alive(db),
        slots=workers.count_slots(db),
        used=overview.count_all_used_slots(db),
        others=overview.list_work(db),
        loaded=model,
        serving=endpoint_uses.list_in_slots(db),
        kept_for=endpoint_uses.list_pinned(db),
        stays=loaded_model.time_left(model) if model else None,
        progress_of=run_progress.measure,
        hardware=hardware_page.strip_of_machines(db),
    )


@router.get("/queue/others")
def background_tasks(request: Request, db: DB) -> Response:
    """Show the background tasks. Runs are updated by the event stream; this block is polled."""
    return block(request, "queue/show.html", "others", others=overview.list_work(db))


@router.post("/queue/loaded/stop")
def unload_model(request: Request, db: DB) -> Response:
    """Ask the inference service to unload its model."""
    loaded_model.request_unload(db)
    return redirect(request, "/queue")


@router.post("/queue/{run_id}/move")
def move(request: Request, run_id: int, db: DB, place: Annotated[int, Form(ge=1)]) -> Response:
    queue.move(db, run_id, place)
    return redirect(request, "/queue")


@router.post("/queue/{run_id}/hold")
def hold(request: Request, run_id: int, db: DB, held: Annotated[bool, Form()]) -> Response:
    queue.hold(db, run_id, is_held=held)
    return redirect(request, "/queue")


@router.post("/queue/{run_id}/priority")
def prioritise(
    request: Request, run_id: int, db: DB, priority: Annotated[int, Form(ge=-100, le=100)]
) -> Response:
    queue.set_priority(db, run_id, priority)
    return redirect(request, "/queue")


@router.post("/queue/{run_id}/cancel")
def cancel(request: Request, run_id: int, db: DB) -> Response:
    run_commands.cancel(db, run_id)
    return redirect(request, "/queue")


@router.get("/worker")
def worker_banner(request: Request) -> Response:
    """Return the worker's status and the counts of the menu, which open pages refresh."""
    return page(request, "queue/worker_status.html")


@router.get("/chores/{chore_id}")
def show_task(request: Request, chore_id: TaskId, db: DB, then: ReturnUrl = "") -> Response:
    task = tasks.get(db, chore_id)
    if wants_fragment(request):
        return block(request, "queue/task.html", "chore", **_task_context(db, task, then))
    return page(request, "queue/task.html", **_task_context(db, task, then))


@router.post("/chores/{chore_id}/cancel")
def cancel_task(request: Request, chore_id: TaskId, db: DB, then: ReturnUrl = "") -> Response:
    task = task_results.cancel(db, chore_id)
    return _respond(request, db, task, then)


@router.post("/chores/{chore_id}/again")
def retry_task(request: Request, chore_id: TaskId, db: DB, then: ReturnUrl = "") -> Response:
    task = tasks.get(db, chore_id)
    tasks.retry(task)
    return _respond(request, db, task, then)


def _respond(request: Request, db: DB, task: Task, then: str) -> Response:
    """Redraw the task in place for htmx, else redirect to the page the request came from."""
    if wants_fragment(request):
        return block(request, "queue/task.html", "chore", **_task_context(db, task, then))
    return redirect(request, referring_page(request, f"/chores/{task.id}"))


def _task_context(db: DB, task: Task, then: str) -> dict[str, Any]:
    return {"chore": task, "then": then, "wait": overview.explain_work_wait(db, task)}
