"""REST routes that estimate the memory and time of a recipe, calibrate and measure."""

from dataclasses import asdict
from typing import Any, Literal

from fastapi import APIRouter, Request
from sqlmodel import Session

from studio.db.session import read_session
from studio.methods import AnyRecipe
from studio.services.estimates import calibrations, dry_runs, estimates, fit_suggestions
from studio.services.estimates.estimates import MemoryEstimate
from studio.services.estimates.fit_suggestions import RecipeChange
from studio.services.estimates.memory_fit import HostMemory
from studio.services.precision import recommendation
from studio.services.runs import runs
from studio.web.api.conventions.api_route import ApiRoute
from studio.web.api.conventions.schemas import Body, Out
from studio.web.api.system.tasks import TaskOut
from studio.web.api.system.tasks import task_out as chore_out
from studio.web.http.deps import DB, Config

router = APIRouter(route_class=ApiRoute, prefix="/api/v1/estimate", tags=["runs"])


class EstimateRequest(Body):
    recipe: AnyRecipe


class HostOut(Out):
    """Peak host memory of a run on a GPU, in bytes."""

    total: int
    loading: int
    """Weights while they are loaded and not yet on the device."""
    saving: int
    """Trained weights while they are saved."""
    examples: int
    beside: int
    """Bytes used by packages in addition."""
    room: int
    verdict: Literal["fits", "tight", "too large"]


class MemoryOut(Out):
    """Bytes by part at the peak of a step: estimated, or counted by a dry run."""

    total: int
    """The sum of the parts, times `factor`."""
    moment: Literal["backward", "update"]
    """When the peak occurs: at the start of the backward pass, or in the optimizer step."""
    parts: dict[str, int]
    length: int
    """Tokens of the longest example used for the estimate."""
    knows_lengths: bool
    """Whether the token lengths of this data are known; if not, the maximum length is assumed."""
    is_exact: bool
    """Whether a dry run has counted the tensors; otherwise a closed-form estimate. On a CPU, the
    part `holes`, allocator overhead, is estimated either way."""
    closed_total: int | None
    """The closed-form estimate, if a dry run has replaced it; otherwise null."""
    assumed: tuple[str, ...]
    """The assumptions of the closed-form estimate for this recipe, in sentences."""
    factor: float
    """Correction factor: measured over estimated memory of earlier runs on this machine."""
    factor_runs: int
    beside: int
    """Bytes used by packages or the driver in addition."""
    room: int
    """Available bytes of the GPU, or of the host."""
    host: HostOut | None
    """Host memory needed by a run on a GPU; null if it trains on the CPU."""
    verdict: Literal["fits", "tight", "too large"]
    """The worse of the device's and the host's verdict."""


class TimeOut(Out):
    steps: int
    is_most: bool
    """Whether `steps` is an upper bound: how many rows are packed per example is not known yet."""
    tokens: int | None
    """Null until a run has read this data with this model."""
    seconds: float | None
    """Null until there is a comparable run or a calibration."""
    least_seconds: float | None
    most_seconds: float | None
    runs: int
    """The number of runs and calibrations it is based on."""
    is_calibrated: bool


class SuggestedChangeOut(Out):
    """A recipe change, to merge into the recipe."""

    title: str
    change: dict[str, Any]


class Estimate(Out):
    memory: MemoryOut | None
    """Null if the activation memory of the model's layers is unknown: a measurement counts it."""
    measured_bytes: float | None
    """The peak of an earlier run or calibration with equally full steps; null without one."""
    time: TimeOut
    smallest_change: SuggestedChangeOut | None
    """The smallest change that makes the recipe fit; null if it fits, or nothing helps."""
    largest_batch: SuggestedChangeOut | None
    """The largest batch size that fits; null if the recipe already uses it."""


@router.post("")
def show(asked: EstimateRequest, request: Request) -> Estimate:
    """Estimate the memory and time of a recipe. Starts nothing and saves nothing."""
    with read_session(request.app.state.engine) as db:
        return estimate_for(db, recommendation.resolve_precision(db, asked.recipe).recipe)


@router.post("/calibration", status_code=202)
def calibrate(asked: EstimateRequest, db: DB, config: Config) -> TaskOut:
    """Train a few steps of a recipe to calibrate its estimates; the model is discarded."""
    recipe = recommendation.resolve_precision(db, asked.recipe).recipe
    runs.check(db, recipe)
    return chore_out(calibrations.enqueue(db, recipe, config))


@router.post("/measurement", status_code=202)
def measure(asked: EstimateRequest, db: DB, config: Config) -> TaskOut:
    """Simulate a step of a recipe with fake tensors, without the memory it would use.

    Afterwards, estimates of such steps count every tensor; requesting it again returns the same
    task.
    """
    recipe = recommendation.resolve_precision(db, asked.recipe).recipe
    runs.check(db, recipe)
    return chore_out(dry_runs.enqueue(db, recipe, config))


def estimate_for(db: Session, recipe: AnyRecipe) -> Estimate:
    """Estimate the memory and time of a recipe.

    Raises:
        InvalidError: The model or dataset does not exist.

    """
    inputs = estimates.load_inputs(db)
    estimate = estimates.estimate_recipe(db, recipe, inputs)
    suggestions = fit_suggestions.suggest(db, recipe, inputs)
    return Estimate(
        memory=_memory_out(estimate.memory),
        measured_bytes=estimate.measured,
        time=TimeOut.model_validate(estimate.timing),
        smallest_change=_change_out(suggestions.smallest),
        largest_batch=_change_out(suggestions.largest),
    )


def _memory_out(estimate: MemoryEstimate | None) -> MemoryOut | None:
    if estimate is None:
        return None
    return MemoryOut(
        total=estimate.total,
        moment=estimate.estimate.moment,
        parts=estimate.estimate.parts,
        length=estimate.estimate.length,
        knows_lengths=estimate.knows_lengths,
        is_exact=estimate.is_exact,
        closed_total=estimate.formula_total,
        assumed=estimate.assumptions,
        factor=estimate.correction.factor,
        factor_runs=estimate.correction.runs,
        beside=estimate.overhead_bytes,
        room=estimate.room,
        host=None if estimate.host is None else _host_out(estimate.host),
        verdict=estimate.verdict,
    )


def _change_out(suggestion: RecipeChange | None) -> SuggestedChangeOut | None:
    return (
        SuggestedChangeOut(title=suggestion.title, change=dict(suggestion.change))
        if suggestion
        else None
    )


def _host_out(host: HostMemory) -> HostOut:
    return HostOut(**asdict(host), total=host.total, verdict=host.verdict)
