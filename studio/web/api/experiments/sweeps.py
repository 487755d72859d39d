"""REST routes of sweeps: preview, start, show, pause, resume, stop, delete."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field
from sqlmodel import Session

from studio.db.states import RunStatus, SweepStatus
from studio.db.tables import Sweep
from studio.methods import AnyRecipe
from studio.recipe.search_space import Scalar, SearchSpace
from studio.services import experiments
from studio.services.sweeps import sweep_preview, sweeps
from studio.services.sweeps.sweep_preview import Direction, Strategy, SweepPlan
from studio.services.sweeps.sweeps import State, Trial
from studio.web.api import conventions as api
from studio.web.http.deps import DB, ReadDB

router = APIRouter(route_class=api.ApiRoute, prefix="/api/v1/sweeps", tags=["sweeps"])

METRIC_PATTERN = r"^[a-z][a-z0-9_]*$"


class NewSweep(api.Body):
    experiment_id: api.BodyId
    space: Annotated[SearchSpace, Field(min_length=1, max_length=50)]
    """By the dotted name of each setting to vary: `{"values": […]}`, or `{"low": …, "high": …}`
    with `log` or `step`."""
    strategy: Strategy = "grid"
    count: Annotated[int, Field(ge=1, le=sweep_preview.MAX_RUNS)] | None = None
    """The number of runs; a grid has one per combination."""
    metric: Annotated[str, Field(max_length=100, pattern=METRIC_PATTERN)] | None = None
    """The metric to optimise; by default the objective of the recipe's training method."""
    direction: Direction | None = None
    """By default the metric's better direction."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """The seed of the sampler."""
    is_pruning: bool = False
    """Whether to stop runs early that are worse than the median of the others; TPE only."""
    parallel: Annotated[int, Field(ge=1, le=sweep_preview.MAX_PARALLEL)] = 1
    """How many of its runs may be queued or training at once."""


class RefusedSettingsOut(api.Out):
    message: str
    hint: str
    count: int
    """How many of the checked combinations."""
    example: str


class SweepPreviewOut(api.Out):
    """The size and duration of a sweep before it starts."""

    count: int
    """The number of runs."""
    looked_at: int
    """How many combinations of settings were checked; for a TPE search, a sample."""
    left_out: int
    """How many of these cannot run on this machine."""
    refused: list[RefusedSettingsOut]
    at_once: int
    seconds: float | None
    """Null if no such run has been timed on this machine."""
    least_seconds: float | None
    most_seconds: float | None


class SweepOut(api.Out):
    id: int
    experiment_id: int
    name: str
    recipe: AnyRecipe
    """The recipe of every run, except for the settings that vary."""
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
    """The number of runs queued so far."""
    importance: dict[str, float]
    """How much each setting determines whether a run is in the best quarter, as shares that sum to
    one (PED-ANOVA); empty until eight runs have finished."""
    error: str
    created_at: datetime
    finished_at: datetime | None


class TrialOut(api.Out):
    number: int
    """Starts at zero."""
    run_id: int
    status: RunStatus
    state: State
    settings: dict[str, Scalar]
    value: float | None
    """The value of the sweep's metric."""


class SweepWithTrialsOut(SweepOut):
    trials: list[TrialOut]
    best: TrialOut | None


@router.post("", status_code=201)
def create(new: NewSweep, seen: ReadDB, db: DB) -> SweepOut:
    """Start a sweep; the worker queues its runs. Settings that cannot run here are skipped."""
    plan, recipe = _build_plan(new), experiments.get(seen, new.experiment_id).recipe
    # Checking hundreds of combinations takes a while: write to the database only afterwards.
    prospect = sweep_preview.preview(seen, recipe, plan)
    experiment = experiments.get(db, new.experiment_id)
    return SweepOut.model_validate(sweeps.create(db, experiment, plan, recipe, prospect))


@router.post("/prospect")
def prospect(new: NewSweep, db: ReadDB) -> SweepPreviewOut:
    """Preview a sweep: the number of runs, their duration and the settings that cannot run."""
    experiment = experiments.get(db, new.experiment_id)
    return SweepPreviewOut.model_validate(
        sweep_preview.preview(db, experiment.recipe, _build_plan(new))
    )


@router.get("")
def newest(db: DB, after: api.After = None, limit: api.Limit = 50) -> api.Listing[SweepOut]:
    rows = sweeps.newest(db, limit=limit + 1, before=after)
    return api.make_page(rows, limit, [SweepOut.model_validate(row) for row in rows])


@router.get("/{sweep_id}")
def show(sweep_id: api.Id, db: DB) -> SweepWithTrialsOut:
    return _sweep_with_trials(db, sweeps.get(db, sweep_id))


@router.post("/{sweep_id}/pause")
def pause(sweep_id: api.Id, db: DB) -> SweepOut:
    """Start no further runs; runs that are training continue."""
    return SweepOut.model_validate(sweeps.pause(db, sweep_id))


@router.post("/{sweep_id}/resume")
def resume(sweep_id: api.Id, db: DB) -> SweepOut:
    return SweepOut.model_validate(sweeps.resume(db, sweep_id))


@router.post("/{sweep_id}/stop")
def stop(sweep_id: api.Id, db: DB) -> SweepOut:
    """End the sweep now: training runs stop and keep their result, queued runs are cancelled."""
    return SweepOut.model_validate(sweeps.stop(db, sweep_id))


@router.delete("/{sweep_id}", status_code=204)
def delete(sweep_id: api.Id, db: DB) -> None:
    """Delete a finished sweep. Its runs are not deleted."""
    sweeps.delete(db, sweep_id)


def _build_plan(new: NewSweep) -> SweepPlan:
    values = {name: getattr(new, name) for name in NewSweep.model_fields}
    del values["experiment_id"]
    return SweepPlan(**values)


def _sweep_with_trials(db: Session, sweep: Sweep) -> SweepWithTrialsOut:
    listed = sweeps.list_trials(db, sweep)
    best = sweeps.best(sweep, listed)
    fields = SweepOut.model_validate(sweep).model_dump()
    fields["recipe"], fields["space"] = sweep.recipe, sweep.space
    results = {
        "trials": [_trial_out(trial) for trial in listed],
        "best": _trial_out(best) if best else None,
    }
    return SweepWithTrialsOut.model_validate(fields | results)


def _trial_out(trial: Trial) -> TrialOut:
    return TrialOut(
        number=trial.number,
        run_id=trial.run.id or 0,
        status=trial.run.status,
        state=trial.state,
        settings=dict(trial.settings),
        value=trial.value,
    )
