"""REST routes of trackers: where a run is sent besides the studio, and how far that is."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field
from sqlmodel import Session

from studio.db.trackers import TrackedRun
from studio.services.runs import runs
from studio.services.trackers import tracker_status, trackers
from studio.services.trackers.tracker_status import Progress, TrackerStatus
from studio.settings import Settings, TrackerName
from studio.trackers.contract import TrackerOptions
from studio.web.api import conventions as api
from studio.web.http.deps import DB, Config

router = APIRouter(
    route_class=api.ApiRoute, prefix="/api/v1/runs/{run_id}/trackers", tags=["trackers"]
)

Text = Annotated[str, Field(max_length=200)]


class NewTracker(api.Body):
    tracker: TrackerName
    project: Text = ""
    """The project or experiment there; by default the run's experiment."""
    name: Text = ""
    """The run's name there; by default its name and number here."""
    entity: Text = ""
    """The team, at Weights & Biases."""
    tags: Annotated[list[Text], Field(max_length=50, default_factory=list)]


class TrackerOut(api.Out):
    key: str
    """Its name in addresses: the tracker, with a number from the second of its kind."""
    tracker: TrackerName
    title: str
    project: str
    """Empty if the run's experiment names it."""
    progress: Progress
    """`waiting` for news or for the worker, `sending`, `sent` (the run has ended and all of it is
    there), `failing` (tried again at `retry_at`), or `given_up`."""
    step: int | None
    """The last step that was sent; null before the first."""
    place: str
    """Where to see it: a folder or an address; empty before the first batch."""
    command: str
    """The command that shows it; empty if `place` is an address."""
    error: str
    hint: str
    retry_at: datetime | None


class TrackerListing(api.Listing[TrackerOut]):
    """Where a run is sent."""


@router.get("")
def listing(run_id: api.Id, db: DB, config: Config) -> TrackerListing:
    run = runs.get(db, run_id)
    statuses = tracker_status.list_for_run(db, config, run)
    return TrackerListing.complete([_out(status) for status in statuses])


@router.post("", status_code=api.ACCEPTED)
def send(run_id: api.Id, new: NewTracker, db: DB, config: Config) -> TrackerOut:
    """Send a run to a tracker, from its first event on; it may have ended long ago."""
    options = TrackerOptions.model_validate(new.model_dump(exclude={"tracker"}), strict=False)
    return _row_out(db, config, run_id, trackers.start(db, run_id, new.tracker, options))


@router.post("/{key}/retry")
def retry(run_id: api.Id, key: str, db: DB, config: Config) -> TrackerOut:
    """Try again at once."""
    return _row_out(db, config, run_id, trackers.retry(db, config, run_id, key))


@router.delete("/{key}", status_code=204)
def stop(run_id: api.Id, key: str, db: DB, config: Config) -> None:
    """Stop sending a run to a tracker. What was sent stays there."""
    trackers.remove(db, config, run_id, key)


def _row_out(db: Session, config: Settings, run_id: int, row: TrackedRun) -> TrackerOut:
    statuses = tracker_status.list_for_run(db, config, runs.get(db, run_id))
    return next(_out(status) for status in statuses if status.key == row.key)


def _out(status: TrackerStatus) -> TrackerOut:
    names = TrackerOut.model_fields.keys() - {"tracker"}
    values = {name: getattr(status, name) for name in names}
    return TrackerOut(tracker=status.row.tracker, **values)
