"""Sweeps as JSON: ask what one comes to, begin it, follow it, pause, stop and delete it."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field
from sqlmodel import Session

from studio.db.states import RunStatus, SweepStatus
from studio.db.sweeps import Sweep
from studio.methods import AnyRecipe
from studio.recipe.search_space import Scalar, SearchSpace
from studio.services import experiments
from studio.services.sweeps import sweep_preview, sweeps, trials
from studio.services.sweeps.sweep_preview import Direction, Strategy, SweepPlan
from studio.services.sweeps.trials import State, Trial
from studio.web.api.conventions.api_route import ApiRoute
from studio.web.api.conventions.schemas import (
    After,
    Body,
    BodyId,
    Id,
    Limit,
    Listing,
    Out,
    make_page,
)
from studio.web.http.deps import DB, ReadDB

router = APIRouter(route_class=ApiRoute, prefix="/api/v1/sweeps", tags=["sweeps"])

METRIC_PATTERN = r"^[a-z][a-z0-9_]*$"


class NewSweep(Body):
    experiment_id: BodyId
    space: Annotated[SearchSpace, Field(min_length=1, max_length=50)]
    """By the dotted name of each knob that varies: `{"values": […]}`, or `{"low": …, "high": …}`
    with `log` or `step`."""
    strategy: Strategy = "grid"
    count: Annotated[int, Field(ge=1, le=sweep_preview.MAX_RUNS)] | None = None
    """How many runs; a grid has as many as there are combinations."""
    metric: Annotated[str, Field(max_length=100, pattern=METRIC_PATTERN)] = "eval_loss"
    direction: Direction = "minimise"
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """What is drawn follows from it."""
    is_pruning: bool = False
    """Whether a run that is worse than the median of the others is stopped early; TPE only."""
    parallel: Annotated[int, Field(ge=1, le=sweep_preview.MAX_PARALLEL)] = 1
    """How many of its runs may wait or train at once."""


class RefusedSettingsOut(Out):
    message: str
    hint: str
    count: int
    """How many of the settings looked at."""
    example: str


class SweepPreviewOut(Out):
    """What a sweep comes to before it starts."""

    count: int
    """How many runs there will be."""
    looked_at: int
    """How many settings were looked at; of a search by TPE some that stand for the others."""
    left_out: int
    """How many of them cannot run here."""
    refused: list[RefusedSettingsOut]
    at_once: int
    seconds: float | None
    """Null where nobody has timed such runs on this machine."""
    least_seconds: float | None
    most_seconds: float | None


class SweepOut(Out):
    id: int
    experiment_id: int
    name: str
    recipe: AnyRecipe
    """What holds of every run, but for the knobs that vary."""
    space: SearchSpace
    strategy: Strategy
    count: int
    metric: str
    direction: Direction
    seed: int
    is_pruning: bool
    parallel: int
    status: SweepStatus
    submitted: int
    """How many runs it has queued so far."""
    importance: dict[str, float]
    """How much each knob decides whether a run is among the best quarter, as shares of one
    (PED-ANOVA); empty until eight runs have ended."""
    error: str
    created_at: datetime
    finished_at: datetime | None


class TrialOut(Out):
    number: int
    """Counted from zero."""
    run_id: int
    status: RunStatus
    state: State
    settings: dict[str, Scalar]
    value: float | None
    """Of the sweep's metric."""


class SweepWithTrialsOut(SweepOut):
    trials: list[TrialOut]
    best: TrialOut | None


@router.post("", status_code=201)
def create(new: NewSweep, seen: ReadDB, db: DB) -> SweepOut:
    """Begin a sweep; the worker queues its runs. Settings that cannot run here are left out."""
    plan, recipe = _build_plan(new), experiments.get(seen, new.experiment_id).recipe
    # Looking at hundreds of settings takes a while: the database is held only from here on.
    prospect = sweep_preview.preview(seen, recipe, plan)
    experiment = experiments.get(db, new.experiment_id)
    return SweepOut.model_validate(sweeps.create(db, experiment, plan, recipe, prospect))


@router.post("/prospect")
def prospect(new: NewSweep, db: ReadDB) -> SweepPreviewOut:
    """Say how many runs a sweep would have, how long they take and what cannot run."""
    experiment = experiments.get(db, new.experiment_id)
    return SweepPreviewOut.model_validate(
        sweep_preview.preview(db, experiment.recipe, _build_plan(new))
    )


@router.get("")
def newest(db: DB, after: After = None, limit: Limit = 50) -> Listing[SweepOut]:
    rows = sweeps.newest(db, limit=limit + 1, before=after)
    return make_page(rows, limit, [SweepOut.model_validate(row) for row in rows])


@router.get("/{sweep_id}")
def show(sweep_id: Id, db: DB) -> SweepWithTrialsOut:
    return _sweep_with_trials(db, sweeps.get(db, sweep_id))


@router.post("/{sweep_id}/pause")
def pause(sweep_id: Id, db: DB) -> SweepOut:
    """Begin no further run; those that train go on."""
    return SweepOut.model_validate(sweeps.pause(db, sweep_id))


@router.post("/{sweep_id}/resume")
def resume(sweep_id: Id, db: DB) -> SweepOut:
    return SweepOut.model_validate(sweeps.resume(db, sweep_id))


@router.post("/{sweep_id}/stop")
def stop(sweep_id: Id, db: DB) -> SweepOut:
    """End it now: runs that train stop and keep their result, those that wait are cancelled."""
    return SweepOut.model_validate(sweeps.stop(db, sweep_id))


@router.delete("/{sweep_id}", status_code=204)
def delete(sweep_id: Id, db: DB) -> None:
    """Delete a sweep that has ended. Its runs stay."""
    sweeps.delete(db, sweep_id)


def _build_plan(new: NewSweep) -> SweepPlan:
    values = {name: getattr(new, name) for name in NewSweep.model_fields}
    del values["experiment_id"]
    return SweepPlan(**values)


def _sweep_with_trials(db: Session, sweep: Sweep) -> SweepWithTrialsOut:
    made = trials.list_trials(db, sweep)
    best = trials.best(sweep, made)
    about = SweepOut.model_validate(sweep).model_dump()
    about["recipe"], about["space"] = sweep.recipe, sweep.space
    told = {"trials": [_trial_out(one) for one in made], "best": _trial_out(best) if best else None}
    return SweepWithTrialsOut.model_validate(about | told)


def _trial_out(one: Trial) -> TrialOut:
    return TrialOut(
        number=one.number,
        run_id=one.run.id or 0,
        status=one.run.status,
        state=one.state,
        settings=dict(one.settings),
        value=one.value,
    )
