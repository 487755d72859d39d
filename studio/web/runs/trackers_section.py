"""The trackers of a run on its Files tab: where it is sent, how far, and what to do."""

from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response
from sqlmodel import Session

from studio.db.tables import Run
from studio.services.runs import runs
from studio.services.trackers import tracker_status, trackers
from studio.settings import Settings, TrackerName
from studio.web.http.deps import DB, Config
from studio.web.rendering.render import block, redirect

router = APIRouter(include_in_schema=False)


@router.post("/runs/{run_id}/trackers")
def send(
    request: Request, run_id: int, db: DB, tracker: Annotated[TrackerName, Form()]
) -> Response:
    trackers.start(db, run_id, tracker)
    return redirect(request, _address(run_id))


@router.post("/runs/{run_id}/trackers/{key}/retry")
def retry(request: Request, run_id: int, key: str, db: DB, config: Config) -> Response:
    trackers.retry(db, config, run_id, key)
    return redirect(request, _address(run_id))


@router.post("/runs/{run_id}/trackers/{key}/delete")
def stop(request: Request, run_id: int, key: str, db: DB, config: Config) -> Response:
    trackers.remove(db, config, run_id, key)
    return redirect(request, _address(run_id))


@router.get("/runs/{run_id}/parts/trackers")
def refresh(request: Request, run_id: int, db: DB, config: Config) -> Response:
    """Return the list of trackers, which changes while they are sent to."""
    run = runs.get(db, run_id)
    return block(
        request, "runs/files.html", "trackers", run=run, tracked=context(db, run, config)["tracked"]
    )


def context(db: Session, run: Run, config: Settings) -> dict[str, Any]:
    """Return what the section shows."""
    return {
        "tracked": tracker_status.list_for_run(db, config, run),
        "tracker_choices": tracker_status.list_choices(),
    }


def _address(run_id: int) -> str:
    return f"/runs/{run_id}/files#trackers"
