"""Runs as JSON: submit, list, change, and fetch what came of them."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query
from fastapi.responses import FileResponse, Response
from pydantic import Field

from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.manifest import Manifest
from studio.methods import AnyRecipe
from studio.rundir import RunDir
from studio.services import (
    artifacts,
    attempts,
    control,
    experiments,
    history,
    manifests,
    metrics,
    queue,
    receipts,
    runs,
)
from studio.services.history import Happened
from studio.web.api.shapes import (
    After,
    Body,
    FailedRunOut,
    Limit,
    Listing,
    Name,
    Out,
    RunOut,
    page_of,
    run_explained,
    run_out,
)
from studio.web.deps import DB, Config

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])

Keys = Annotated[str, Query(max_length=1000)]
Key = Annotated[str, Header(max_length=255)]
Buckets = Annotated[int, Query(ge=2, le=10_000)]


class NewRun(Body):
    name: Name
    recipe: AnyRecipe


class ChangedRun(Body):
    """What may be changed of a run; the last three only while it is queued."""

    name: Name | None = None
    priority: Annotated[int, Field(ge=-100, le=100)] | None = None
    """Higher starts first."""
    place: Annotated[int, Field(ge=1)] | None = None
    """Its place among the waiting runs of its priority, counted from one."""
    is_held: bool | None = None
    """Whether it waits until you let it go."""


class ChangedRecipe(Body):
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Values to lay over the recipe, nested as it is: the `change` of a repair, for one."""


class Retry(Body):
    place: Literal["checkpoint", "start"] = Field(default="checkpoint", alias="from")
    """From the start, the run's numbers and answers so far are deleted; its history stays."""


class AttemptOut(Out):
    number: int
    worker: str
    from_step: int
    began_at: datetime
    ended_at: datetime | None
    outcome: str
    """The run's status after it, `lost` when its process was gone without a word, or nothing."""
    exit_code: int | None


class SeriesOut(Out):
    mean: list[float | None]
    min: list[float | None]
    max: list[float | None]
    non_finite: list[float]


class CurvesOut(Out):
    """Metrics along one axis; null where a metric has no number at that place."""

    x: list[float]
    series: dict[str, SeriesOut]
    last_id: int
    """Pass it to the stream as `after` to go on from here."""


class LogOut(Out):
    lines: list[str]
    next_offset: int


class ArtifactOut(Out):
    name: str
    bytes: int


@router.post("", status_code=201)
def submit(new: NewRun, db: DB, idempotency_key: Key = "") -> RunOut:
    """Make an experiment of the recipe, and queue its first run.

    Sent again with the same `Idempotency-Key`, it answers with the run made the first time.
    """
    sent = new.model_dump_json().encode()

    def make() -> Run:
        return runs.submit(db, experiments.create(db, new.name, new.recipe))

    return run_out(db, receipts.once(db, idempotency_key, sent, make))


@router.get("")
def newest(
    db: DB,
    status: RunStatus | None = None,
    experiment: int | None = None,
    search: Annotated[str, Query(max_length=200)] = "",
    after: After = None,
    limit: Limit = 50,
) -> Listing[RunOut]:
    which = runs.Filter(search=search, status=status, experiment_id=experiment)
    rows = runs.newest(db, which, limit=limit + 1, before=after)
    return page_of(rows, limit, [run_out(db, row) for row in rows])


@router.get("/{run_id}")
def show(run_id: int, db: DB, config: Config) -> FailedRunOut:
    """Tell all of a run; of one that has failed, also how it can be mended."""
    return run_explained(db, runs.get(db, run_id), _folder(db, config, run_id))


@router.patch("/{run_id}")
def change(run_id: int, changed: ChangedRun, db: DB) -> RunOut:
    if changed.name is not None:
        runs.rename(db, run_id, changed.name)
    if changed.priority is not None:
        queue.prioritise(db, run_id, changed.priority)
    if changed.place is not None:
        queue.move(db, run_id, changed.place)
    if changed.is_held is not None:
        queue.hold(db, run_id, held=changed.is_held)
    return run_out(db, runs.get(db, run_id))


@router.delete("/{run_id}", status_code=204)
def delete(run_id: int, db: DB, config: Config) -> None:
    runs.delete(db, run_id, config.runs)


@router.post("/{run_id}/again", status_code=201)
def again(run_id: int, changed: ChangedRecipe, db: DB) -> RunOut:
    """Queue the recipe of a run once more, with some of its values changed."""
    return run_out(db, runs.again(db, run_id, changed.overrides, strict=None))


@router.post("/{run_id}/cancel")
def cancel(run_id: int, db: DB) -> RunOut:
    return run_out(db, control.cancel(db, run_id))


@router.post("/{run_id}/keep")
def keep(run_id: int, db: DB) -> RunOut:
    """Stop the run, and keep what it has learnt as its result."""
    return run_out(db, control.keep(db, run_id))


@router.post("/{run_id}/pause")
def pause(run_id: int, db: DB) -> RunOut:
    """Have the run write a checkpoint and leave its slot."""
    return run_out(db, control.pause(db, run_id))


@router.post("/{run_id}/resume")
def resume(run_id: int, db: DB) -> RunOut:
    """Queue a paused run to go on from its checkpoint."""
    return run_out(db, control.resume(db, run_id))


@router.post("/{run_id}/retry")
def retry(run_id: int, db: DB, how: Retry | None = None) -> RunOut:
    """Queue a failed or cancelled run to go on from its newest checkpoint, or to begin anew."""
    again = control.restart if how and how.place == "start" else control.retry
    return run_out(db, again(db, run_id))


@router.get("/{run_id}/attempts")
def tries(run_id: int, db: DB) -> Listing[AttemptOut]:
    """Tell of each attempt at the run, oldest first."""
    runs.get(db, run_id)
    found = [AttemptOut.model_validate(one) for one in attempts.of(db, run_id)]
    return Listing(data=found, has_more=False, next_after=None)


@router.get("/{run_id}/metrics")
def curves(
    run_id: int,
    db: DB,
    keys: Keys = "",
    x: metrics.Axis = "step",
    buckets: Buckets = 1000,
) -> CurvesOut:
    runs.get(db, run_id)
    wanted = keys.split(",") if keys else metrics.keys(db, [run_id])
    found = metrics.curves(db, [run_id], wanted, x=x, buckets=buckets)
    series = {
        key: SeriesOut.model_validate(one, from_attributes=True)
        for (_run, key), one in found.series.items()
    }
    return CurvesOut(x=found.x, series=series, last_id=found.last_id)


@router.get("/{run_id}/events")
def events(run_id: int, db: DB, after: After = 0, limit: Limit = 200) -> Listing[Happened]:
    """Tell what befell the run, oldest first. Pass over kinds that you do not know."""
    runs.get(db, run_id)
    rows = runs.happenings(db, run_id, after=after or 0, limit=limit + 1)
    return page_of(rows, limit, [history.told(row) for row in rows])


@router.get("/{run_id}/log")
def log(run_id: int, db: DB, config: Config, after: After = None, limit: Limit = 500) -> LogOut:
    """Lines of the log after a byte offset; without one, the last lines."""
    part = artifacts.log_part(_folder(db, config, run_id).log, after, limit)
    return LogOut(lines=part.lines, next_offset=part.next_offset)


@router.get("/{run_id}/manifest", responses={200: {"model": Manifest}})
def manifest(run_id: int, db: DB, config: Config) -> Response:
    """All it takes to repeat the run, and to trust it; what is known so far while it goes on."""
    told = manifests.of(db, runs.get(db, run_id), _folder(db, config, run_id))
    return Response(told, media_type="application/json")


@router.get("/{run_id}/artifacts")
def listing(run_id: int, db: DB, config: Config) -> Listing[ArtifactOut]:
    found = artifacts.listing(_folder(db, config, run_id).artifacts)
    shown = [ArtifactOut(name=one.name, bytes=one.bytes) for one in found]
    return Listing(data=shown, has_more=False, next_after=None)


@router.get("/{run_id}/artifacts/{name:path}")
def artifact(run_id: int, name: str, db: DB, config: Config) -> FileResponse:
    path = artifacts.find(_folder(db, config, run_id).artifacts, name)
    return FileResponse(path, filename=path.name, media_type="application/octet-stream")


def _folder(db: DB, config: Config, run_id: int) -> RunDir:
    run = runs.get(db, run_id)
    return RunDir(config.runs / str(run.id))
