"""What runs, what waits, and who is there to do the work."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from studio.services import progress, queue, runs
from studio.web.deps import DB
from studio.web.render import go, page

router = APIRouter(prefix="/queue", include_in_schema=False)


@router.get("")
def show(request: Request, db: DB) -> Response:
    return page(
        request,
        "queue/show.html",
        live=runs.live(db),
        waiting=queue.waiting(db),
        workers=queue.workers(db),
        slots=queue.slots(db),
        progress_of=progress.of,
    )


@router.post("/{run_id}/cancel")
def cancel(request: Request, run_id: int, db: DB) -> Response:
    runs.cancel(db, run_id)
    return go(request, "/queue")
