"""REST routes of experiments, of submitting their runs, and of precision studies."""

from datetime import datetime
from itertools import product
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field
from sqlmodel import Session

from studio.db.states import RunStatus
from studio.db.tables import Experiment, Run
from studio.methods import AnyRecipe
from studio.recipe.dotted_keys import merge, nest
from studio.recipe.precision import PrecisionName
from studio.services import experiments
from studio.services.queue import queue
from studio.services.runs import runs
from studio.services.studies import studies, study_reports
from studio.services.studies.study_reports import IncidentKind
from studio.services.studies.study_statistics import GapVerdict, State
from studio.web.api import conventions as api
from studio.web.api.runs.run_results import SeriesOut
from studio.web.http.deps import DB
from studio.web.study_conclusions import draw_conclusions

router = APIRouter(route_class=api.ApiRoute, prefix="/api/v1/experiments", tags=["experiments"])


Tags = Annotated[list[api.Name], Field(max_length=50)]
Sweep = Annotated[dict[str, Annotated[list[Any], Field(min_length=1)]], Field(max_length=10)]


class NewExperiment(api.Body):
    name: api.Name
    notes: api.Notes = ""
    tags: Tags = Field(default_factory=list)
    recipe: AnyRecipe
    parent: api.Source = ""
    """The run or experiment that the recipe was copied from."""


class ChangedExperiment(api.Body):
    name: api.Name | None = None
    notes: api.Notes | None = None
    tags: Tags | None = None


class NewRuns(api.Body):
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Values that override the experiment's recipe, nested like the recipe."""
    seed: int | None = None
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    """Higher starts first."""
    sweep: Sweep = Field(default_factory=dict)
    """Dotted recipe keys, each with the values to try: one run per combination."""


class ExperimentOut(api.Out):
    id: int
    name: str
    notes: str
    tags: list[str]
    recipe: AnyRecipe
    precision: api.ChosenPrecision
    parent: str
    """What the recipe was copied from, such as `run:12` or `experiment:3`; or empty."""
    created_at: datetime


@router.get("")
def newest(db: DB, after: api.After = None, limit: api.Limit = 50) -> api.Listing[ExperimentOut]:
    rows = experiments.newest(db, limit=limit + 1, before=after)
    return api.make_page(rows, limit, [_experiment_out(row) for row in rows])


@router.post("", status_code=201)
def create(new: NewExperiment, db: DB) -> ExperimentOut:
    runs.check(db, new.recipe)
    experiment = experiments.create(db, new.name, new.recipe, notes=new.notes, parent=new.parent)
    experiment.tags = new.tags
    return _experiment_out(experiment)


@router.get("/{experiment_id}")
def show(experiment_id: api.Id, db: DB, etag: api.EtagResponse) -> ExperimentOut:
    experiment = experiments.get(db, experiment_id)
    etag.set_header(experiment.name, experiment.notes, experiment.tags)
    return _experiment_out(experiment)


@router.patch("/{experiment_id}")
def change(
    experiment_id: api.Id, changed: ChangedExperiment, db: DB, etag: api.EtagPrecondition
) -> ExperimentOut:
    experiment = experiments.get(db, experiment_id)
    etag.check(experiment.name, experiment.notes, experiment.tags)
    experiments.update(db, experiment_id, experiments.ExperimentChanges(**changed.model_dump()))
    etag.set_header(experiment.name, experiment.notes, experiment.tags)
    return _experiment_out(experiment)


@router.delete("/{experiment_id}", status_code=204)
def delete(experiment_id: api.Id, db: DB) -> None:
    experiments.delete(db, experiment_id)


@router.post("/{experiment_id}/runs", status_code=201)
def submit(experiment_id: api.Id, new: NewRuns, db: DB) -> api.Listing[api.RunOut]:
    """Queue one run, or one per combination of the sweep's values."""
    experiment = experiments.get(db, experiment_id)
    base = new.overrides if new.seed is None else merge(new.overrides, _seed_override(new.seed))
    submitted = [
        runs.submit(db, experiment, merge(base, nest(zip(new.sweep, values, strict=True))))
        for values in product(*new.sweep.values())
    ]
    for run in submitted:
        queue.set_priority(db, run.id or 0, new.priority)
    return api.Listing.complete([api.run_out(db, run) for run in submitted])


def _experiment_out(row: Experiment) -> ExperimentOut:
    names = ExperimentOut.model_fields.keys() - {"precision"}
    fields = {name: getattr(row, name) for name in names} | {"precision": api.chosen_precision(row)}
    return ExperimentOut.model_validate(fields)


def _seed_override(seed: int) -> dict[str, Any]:
    return {"optimisation": {"seed": seed}}


studies_router = APIRouter(route_class=api.ApiRoute, prefix="/api/v1", tags=["studies"])


class NewStudy(api.Body):
    modes: Annotated[list[PrecisionName], Field(min_length=2, max_length=studies.MAX_RUNS)]
    """Precisions to compare; must include fp32, the reference."""
    seeds: Annotated[int, Field(ge=1, le=studies.MAX_RUNS)] = studies.DEFAULT_SEEDS
    """The number of seeds per precision, starting at seed 0."""
    max_steps: Annotated[int | None, Field(ge=1, le=10_000_000)] = None
    """The steps of each run; defaults to the recipe's."""


class StudyOut(api.Out):
    id: int
    experiment_id: int
    name: str
    modes: list[str]
    seeds: list[int]
    max_steps: int | None
    created_at: datetime


class EstimateOut(api.Out):
    mean: float
    spread: float | None
    """Standard deviation; null for a single measurement."""
    n: int


class FindingOut(api.Out):
    """The results of one precision, computed in `studio.services.studies.study_statistics`."""

    precision: str
    states: dict[State, int]
    step: int | None
    """The step at which losses are compared; null is the end."""
    loss: EstimateOut | None
    gap: EstimateOut | None
    noise: EstimateOut | None
    versus: GapVerdict
    """How the gap compares with the seed noise."""
    lost: float | None
    """The share of the reference's improvement that this precision loses."""
    lost_since: int | None
    not_finite: int
    speed: EstimateOut | None
    speed_ratio: EstimateOut | None
    memory: float | None
    memory_ratio: float | None
    memory_estimate: float | None
    """The peak estimated before the run; null if unknown."""
    skipped_steps: int
    broken_steps: int
    alarms: int


class LossGapsOut(api.Out):
    """Loss gap to the reference by step; the reference's own series is the band of seed noise."""

    x: list[float]
    series: dict[str, SeriesOut]


class DiffPieceOut(api.Out):
    kind: Literal["same", "added", "gone"]
    text: str


class StudyAnswerOut(api.Out):
    prompt: str
    wanted: str
    reference: str
    others: dict[str, list[DiffPieceOut]]


class AnswersOut(api.Out):
    seed: int
    prompts: int
    differing: list[StudyAnswerOut]
    by_mode: dict[str, int]
    between_seeds: int | None


class IncidentOut(api.Out):
    """An alarm, or steps with a skipped update or a NaN or infinite loss."""

    precision: str
    seed: int
    run_id: int
    kind: IncidentKind
    first: int
    last: int
    count: int
    text: str


class StudyRunOut(api.Out):
    id: int
    name: str
    precision: str
    seed: int
    status: RunStatus
    error: str


class ReportOut(StudyOut):
    """A study with its full report."""

    going: int
    """Runs that have not finished."""
    verdict: list[str]
    findings: list[FindingOut]
    curves: dict[str, LossGapsOut]
    answers: AnswersOut | None
    incidents: list[IncidentOut]
    devices: list[str]
    runs: list[StudyRunOut]


@studies_router.post("/experiments/{experiment_id}/studies", status_code=201, name="create")
def create_study(experiment_id: api.Id, new: NewStudy, db: DB) -> StudyOut:
    """Queue a run of the experiment for each precision and seed."""
    plan = studies.StudyPlan(**new.model_dump())
    return StudyOut.model_validate(studies.create(db, experiments.get(db, experiment_id), plan))


@studies_router.get("/studies", name="newest")
def newest_studies(db: DB, after: api.After = None, limit: api.Limit = 50) -> api.Listing[StudyOut]:
    rows = studies.newest(db, limit=limit + 1, before=after)
    return api.make_page(rows, limit, [StudyOut.model_validate(row) for row in rows])


@studies_router.get("/studies/{study_id}", name="show")
def show_study(study_id: api.Id, db: DB) -> ReportOut:
    return report_out(db, study_id)


@studies_router.delete("/studies/{study_id}", status_code=204, name="delete")
def delete_study(study_id: api.Id, db: DB) -> None:
    """Delete the study. Its runs are not deleted."""
    studies.delete(db, study_id)


def report_out(db: Session, study_id: int) -> ReportOut:
    report = study_reports.build_report(db, study_id)
    return ReportOut.model_validate(
        {
            **StudyOut.model_validate(report.study).model_dump(),
            "going": report.going,
            "verdict": draw_conclusions(report),
            "findings": report.findings,
            "curves": report.curves,
            "answers": report.answers,
            "incidents": report.timeline.incidents,
            "devices": report.devices,
            "runs": [_study_run_out(run) for run in report.runs],
        },
        from_attributes=True,
    )


def _study_run_out(run: Run) -> StudyRunOut:
    return StudyRunOut(
        id=run.id or 0,
        name=run.name,
        precision=run.recipe.precision,
        seed=run.recipe.optimisation.seed,
        status=run.status,
        error=run.error_message,
    )
