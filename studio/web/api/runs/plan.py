"""REST routes that plan a recipe: estimates, number formats and refusals; calibrate, measure."""

from dataclasses import asdict
from typing import Any, Literal

from fastapi import APIRouter, Request
from sqlmodel import Session

from studio.db.session import read_session
from studio.methods import AnyRecipe
from studio.services.datasets import data_quality, token_stats
from studio.services.estimates import estimates, fit_suggestions, measurements
from studio.services.estimates.estimates import MemoryEstimate
from studio.services.estimates.fit_suggestions import RecipeChange
from studio.services.estimates.host_memory import HostMemory
from studio.services.precision import number_formats, recommendation
from studio.services.runs import runs, start_checks
from studio.web.api.conventions import ApiRoute, Body, Out
from studio.web.api.system.system import TaskOut, task_out
from studio.web.http.deps import DB, Config

router = APIRouter(route_class=ApiRoute, prefix="/api/v1", tags=["runs"])


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
    """Whether `steps` is an upper bound: how many rows are packed per example is not known yet, or
    the time limit may end the run before."""
    tokens: int | None
    """Null until a run has read this data with this model."""
    seconds: float | None
    """Null until there is a comparable run or a calibration."""
    least_seconds: float | None
    most_seconds: float | None
    runs: int
    """The number of runs and calibrations it is based on."""
    is_calibrated: bool
    is_time_limit: bool
    """Whether the run is expected to make as many steps as fit into its time limit."""


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


class PlanRequest(Body):
    recipe: AnyRecipe


class SizesOut(Out):
    """Bytes by part. Activations are not included: they depend on the data."""

    weights: int
    adapter: int
    gradients: int
    optimizer: int
    copies: int
    """Copies of the weights that autocast caches in the lower precision."""
    compensation: int
    """Rounding compensation that a mode stores in addition to the weights."""
    total: int


class RoundedOut(Out):
    """Weights loaded in a format that cannot represent all their values: measured on a sample."""

    to: str
    stored: list[str]
    """The formats they are stored in."""
    weights: int
    """How many weights are stored in those formats."""
    sampled: int
    changed: float
    """The share of the sample that changes."""
    max_relative_change: float
    mean_relative_change: float
    """Over the sample, including unchanged weights."""


class PlanOut(Out):
    """The number format of each part of training."""

    precision: str
    weights: str
    """Of the base model; two formats joined by "and" if it is saved in both and keeps them."""
    rest: str | None
    """Of a quantised model's embeddings, norms and output, which stay as they are; else null."""
    trained: str
    """Of the trainable weights."""
    compute: str
    gradients: str
    optimizer_states: str
    scaler: bool
    rounded: RoundedOut | None
    """What loading the base model rounds; null if every weight stays as it was saved."""
    parameters: int | None
    """Null if the model's files are not on this machine."""
    trained_parameters: int | None
    sizes: SizesOut | None
    effective_batch: int
    """Examples per optimizer step."""


class RefusalOut(Out):
    message: str
    hint: str
    param: str
    """The dotted name of the field to change."""
    repair: dict[str, Any]
    """Values to merge into the recipe so that it can run; empty if none are known."""
    link: str
    """The page where it can be fixed, if not in the recipe."""


class AdviceOut(Out):
    precision: str
    sentence: str


class PlanAnswer(Estimate):
    """The response of `estimate`, plus the plan, refusals, warnings and advice."""

    plan: PlanOut
    refusals: list[RefusalOut]
    """Why it cannot run on this machine; empty if it can."""
    warnings: list[str]
    advice: AdviceOut


@router.post("/plan", name="show")
def plan(body: PlanRequest, request: Request) -> PlanAnswer:
    """Plan a recipe. Starts nothing and saves nothing."""
    with read_session(request.app.state.engine) as db:
        facts = recommendation.load_model_facts(db, body.recipe.base_model)
        recommended = recommendation.recommend_for_machine(db, body.recipe, facts)
        recipe = recommendation.resolve_precision(db, body.recipe).recipe
        refusals = start_checks.check(db, recipe, facts)
        notice = data_quality.build_notice(db, recipe)
        token_warnings = list(token_stats.list_warnings(db, recipe))
        needs = estimate_for(db, recipe)
    return PlanAnswer(
        plan=PlanOut.model_validate(number_formats.plan_dtypes(recipe, facts)),
        **needs.model_dump(),
        refusals=[RefusalOut.model_validate(refusal) for refusal in refusals],
        warnings=[
            *token_warnings,
            *recommended.warnings,
            *([f"{notice.sentence}."] if notice else []),
        ],
        advice=AdviceOut(precision=recommended.mode.name, sentence=recommended.sentence),
    )


@router.post("/estimate", name="show")
def estimate(body: EstimateRequest, request: Request) -> Estimate:
    """Estimate the memory and time of a recipe. Starts nothing and saves nothing."""
    with read_session(request.app.state.engine) as db:
        return estimate_for(db, recommendation.resolve_precision(db, body.recipe).recipe)


@router.post("/estimate/calibration", status_code=202)
def calibrate(body: EstimateRequest, db: DB, config: Config) -> TaskOut:
    """Train a few steps of a recipe to calibrate its estimates; the model is discarded."""
    recipe = recommendation.resolve_precision(db, body.recipe).recipe
    runs.check(db, recipe)
    return task_out(measurements.enqueue_calibration(db, recipe, config))


@router.post("/estimate/measurement", status_code=202)
def measure(body: EstimateRequest, db: DB, config: Config) -> TaskOut:
    """Simulate a step of a recipe with fake tensors, without the memory it would use.

    Afterwards, estimates of such steps count every tensor; requesting it again returns the same
    task.
    """
    recipe = recommendation.resolve_precision(db, body.recipe).recipe
    runs.check(db, recipe)
    return task_out(measurements.enqueue_dry_run(db, recipe, config))


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
