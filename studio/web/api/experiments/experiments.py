"""REST routes of experiments, and of submitting their runs."""

from datetime import datetime
from itertools import product
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field

from studio.db.tables import Experiment
from studio.methods import AnyRecipe
from studio.recipe.dotted_keys import merge, nest
from studio.services import experiments
from studio.services.queue import queue
from studio.services.runs import runs
from studio.web.api.conventions.api_route import ApiRoute
from studio.web.api.conventions.preconditions import EtagPrecondition, EtagResponse
from studio.web.api.conventions.schemas import (
    After,
    Body,
    ChosenPrecision,
    Id,
    Limit,
    Listing,
    Name,
    Notes,
    Out,
    RunOut,
    Source,
    chosen_precision,
    make_page,
    run_out,
)
from studio.web.http.deps import DB

router = APIRouter(route_class=ApiRoute, prefix="/api/v1/experiments", tags=["experiments"])

Tags = Annotated[list[Name], Field(max_length=50)]
Sweep = Annotated[dict[str, Annotated[list[Any], Field(min_length=1)]], Field(max_length=10)]


class NewExperiment(Body):
    name: Name
    notes: Notes = ""
    tags: Tags = Field(default_factory=list)
    recipe: AnyRecipe
    parent: Source = ""
    """The run or experiment that the recipe was copied from."""


class ChangedExperiment(Body):
    name: Name | None = None
    notes: Notes | None = None
    tags: Tags | None = None


class NewRuns(Body):
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Values that override the experiment's recipe, nested like the recipe."""
    seed: int | None = None
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    """Higher starts first."""
    sweep: Sweep = Field(default_factory=dict)
    """Dotted recipe keys, each with the values to try: one run per combination."""


class ExperimentOut(Out):
    id: int
    name: str
    notes: str
    tags: list[str]
    recipe: AnyRecipe
    precision: ChosenPrecision
    parent: str
    """What the recipe was copied from, such as `run:12` or `experiment:3`; or empty."""
    created_at: datetime


@router.get("")
def newest(db: DB, after: After = None, limit: Limit = 50) -> Listing[ExperimentOut]:
    rows = experiments.newest(db, limit=limit + 1, before=after)
    return make_page(rows, limit, [_experiment_out(row) for row in rows])


@router.post("", status_code=201)
def create(new: NewExperiment, db: DB) -> ExperimentOut:
    runs.check(db, new.recipe)
    experiment = experiments.create(db, new.name, new.recipe, notes=new.notes, parent=new.parent)
    experiment.tags = new.tags
    return _experiment_out(experiment)


@router.get("/{experiment_id}")
def show(experiment_id: Id, db: DB, etag: EtagResponse) -> ExperimentOut:
    experiment = experiments.get(db, experiment_id)
    etag.set_header(experiment.name, experiment.notes, experiment.tags)
    return _experiment_out(experiment)


@router.patch("/{experiment_id}")
def change(
    experiment_id: Id, changed: ChangedExperiment, db: DB, etag: EtagPrecondition
) -> ExperimentOut:
    experiment = experiments.get(db, experiment_id)
    etag.check(experiment.name, experiment.notes, experiment.tags)
    experiments.update(db, experiment_id, experiments.ExperimentChanges(**changed.model_dump()))
    etag.set_header(experiment.name, experiment.notes, experiment.tags)
    return _experiment_out(experiment)


@router.delete("/{experiment_id}", status_code=204)
def delete(experiment_id: Id, db: DB) -> None:
    experiments.delete(db, experiment_id)


@router.post("/{experiment_id}/runs", status_code=201)
def submit(experiment_id: Id, new: NewRuns, db: DB) -> Listing[RunOut]:
    """Queue one run, or one per combination of the sweep's values."""
    experiment = experiments.get(db, experiment_id)
    base = new.overrides if new.seed is None else merge(new.overrides, _seed_override(new.seed))
    submitted = [
        runs.submit(db, experiment, merge(base, nest(zip(new.sweep, values, strict=True))))
        for values in product(*new.sweep.values())
    ]
    for run in submitted:
        queue.set_priority(db, run.id or 0, new.priority)
    return Listing.complete([run_out(db, run) for run in submitted])


def _experiment_out(row: Experiment) -> ExperimentOut:
    names = ExperimentOut.model_fields.keys() - {"precision"}
    fields = {name: getattr(row, name) for name in names} | {"precision": chosen_precision(row)}
    return ExperimentOut.model_validate(fields)


def _seed_override(seed: int) -> dict[str, Any]:
    return {"optimisation": {"seed": seed}}
