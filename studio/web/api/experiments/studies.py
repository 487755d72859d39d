"""Precision studies as JSON: queue one, list them, and read the whole report."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import Field
from sqlmodel import Session

from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.recipe.precision import PrecisionName
from studio.services import experiments
from studio.services.studies import studies, study_reports
from studio.services.studies.incidents import IncidentKind
from studio.services.studies.study_statistics import GapVerdict, State
from studio.web.api.conventions.api_route import ApiRoute
from studio.web.api.conventions.schemas import After, Body, Id, Limit, Listing, Out, make_page
from studio.web.api.runs.run_results import SeriesOut
from studio.web.http.deps import DB
from studio.web.study_conclusions import draw_conclusions

router = APIRouter(route_class=ApiRoute, prefix="/api/v1", tags=["studies"])


class NewStudy(Body):
    modes: Annotated[list[PrecisionName], Field(min_length=2, max_length=studies.MAX_RUNS)]
    """Precisions to compare; fp32, the reference, must be among them."""
    seeds: Annotated[int, Field(ge=1, le=studies.MAX_RUNS)] = studies.DEFAULT_SEEDS
    """How many seeds each precision is run with, counted from zero."""
    max_steps: Annotated[int | None, Field(ge=1, le=10_000_000)] = None
    """How long each run is; null leaves that to the recipe."""


class StudyOut(Out):
    id: int
    experiment_id: int
    name: str
    modes: list[str]
    seeds: list[int]
    max_steps: int | None
    created_at: datetime


class EstimateOut(Out):
    mean: float
    spread: float | None
    """Standard deviation; null for a single measurement."""
    n: int


class FindingOut(Out):
    """What is known of one precision; see `studio.services.studies.study_statistics` for how."""

    precision: str
    states: dict[State, int]
    step: int | None
    """Where the losses were taken; null is the end."""
    loss: EstimateOut | None
    gap: EstimateOut | None
    noise: EstimateOut | None
    versus: GapVerdict
    """Where the gap lies against the seed noise."""
    lost: float | None
    """Share of the reference's improvement."""
    lost_since: int | None
    not_finite: int
    speed: EstimateOut | None
    speed_ratio: EstimateOut | None
    memory: float | None
    memory_ratio: float | None
    memory_estimate: float | None
    """The peak as worked out before the run; null where that is not known."""
    skipped_steps: int
    broken_steps: int
    alarms: int


class LossGapsOut(Out):
    """Distance to the reference along the steps; the reference's own is the band of seed noise."""

    x: list[float]
    series: dict[str, SeriesOut]


class DiffPieceOut(Out):
    kind: Literal["same", "added", "gone"]
    text: str


class StudyAnswerOut(Out):
    prompt: str
    wanted: str
    reference: str
    others: dict[str, list[DiffPieceOut]]


class AnswersOut(Out):
    seed: int
    prompts: int
    differing: list[StudyAnswerOut]
    by_mode: dict[str, int]
    between_seeds: int | None


class IncidentOut(Out):
    """An alarm, or steps whose update was skipped or whose loss was no number."""

    precision: str
    seed: int
    run_id: int
    kind: IncidentKind
    first: int
    last: int
    count: int
    text: str


class StudyRunOut(Out):
    id: int
    name: str
    precision: str
    seed: int
    status: RunStatus
    error: str


class ReportOut(StudyOut):
    """The whole report."""

    going: int
    """Runs that have not ended."""
    verdict: list[str]
    findings: list[FindingOut]
    curves: dict[str, LossGapsOut]
    answers: AnswersOut | None
    incidents: list[IncidentOut]
    devices: list[str]
    runs: list[StudyRunOut]


@router.post("/experiments/{experiment_id}/studies", status_code=201)
def create(experiment_id: Id, new: NewStudy, db: DB) -> StudyOut:
    """Queue every precision with every seed, as runs of the experiment."""
    plan = studies.StudyPlan(**new.model_dump())
    return StudyOut.model_validate(studies.create(db, experiments.get(db, experiment_id), plan))


@router.get("/studies")
def newest(db: DB, after: After = None, limit: Limit = 50) -> Listing[StudyOut]:
    rows = studies.newest(db, limit=limit + 1, before=after)
    return make_page(rows, limit, [StudyOut.model_validate(row) for row in rows])


@router.get("/studies/{study_id}")
def show(study_id: Id, db: DB) -> ReportOut:
    return report_out(db, study_id)


@router.delete("/studies/{study_id}", status_code=204)
def delete(study_id: Id, db: DB) -> None:
    """Delete the study. Its runs stay."""
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
