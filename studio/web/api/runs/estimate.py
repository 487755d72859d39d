"""What a recipe would need: memory by part, time, and what would make it fit."""

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
    """Bytes of the host's memory that a run on a GPU holds at most."""

    total: int
    loading: int
    """Of the weights, while they are read and not yet on the device."""
    saving: int
    """Of what has learnt, while it is written."""
    examples: int
    beside: int
    """Bytes that packages take beside it."""
    room: int
    verdict: Literal["fits", "tight", "too large"]


class MemoryOut(Out):
    """Bytes by part at the fullest moment of a step: estimated, or counted by a dry run."""

    total: int
    """The sum of the parts, times `factor`."""
    moment: Literal["backward", "update"]
    """When that is: as the backward pass begins, or as the optimizer moves the weights."""
    parts: dict[str, int]
    length: int
    """Tokens of the longest example it was worked out for."""
    knows_lengths: bool
    """Whether this data has been read; else every example counts as the longest allowed."""
    is_exact: bool
    """Whether a dry run has counted its tensors; else they are worked out by the closed form. On a
    processor the part `holes`, allocator overhead, is estimated in both."""
    closed_total: int | None
    """What the closed form says where a dry run knows better; else null."""
    assumed: tuple[str, ...]
    """What the closed form takes for granted of this recipe, in sentences."""
    factor: float
    """What earlier runs on this machine measured over what was estimated."""
    factor_runs: int
    beside: int
    """Bytes that packages or the driver take beside it."""
    room: int
    """Bytes of the GPU, or of the host."""
    host: HostOut | None
    """What a run on a GPU needs of the host beside it; null where it trains on the processor."""
    verdict: Literal["fits", "tight", "too large"]
    """The worse of what the device and the host say."""


class TimeOut(Out):
    steps: int
    is_most: bool
    """Whether there may be far fewer: nobody knows yet how many rows share an example."""
    tokens: int | None
    """Null until a run has read this data with this model."""
    seconds: float | None
    """Null until there is a run of its kind, or a calibration."""
    least_seconds: float | None
    most_seconds: float | None
    runs: int
    """How many runs and calibrations it is worked out from."""
    is_calibrated: bool


class SuggestedChangeOut(Out):
    """A change to lay over the recipe."""

    title: str
    change: dict[str, Any]


class Estimate(Out):
    memory: MemoryOut | None
    """Null where it is not known how the model's layers hold a batch: a measurement counts it."""
    measured_bytes: float | None
    """The peak of an earlier run or calibration whose steps were as full; null without one."""
    time: TimeOut
    smallest_change: SuggestedChangeOut | None
    """What would make it fit; null where it does, or nothing helps."""
    largest_batch: SuggestedChangeOut | None
    """Null where that is the recipe's own."""


@router.post("")
def show(asked: EstimateRequest, request: Request) -> Estimate:
    """Say what a recipe would need. Starts nothing and writes nothing."""
    with read_session(request.app.state.engine) as db:
        return estimate_for(db, recommendation.resolve_precision(db, asked.recipe).recipe)


@router.post("/calibration", status_code=202)
def calibrate(asked: EstimateRequest, db: DB, config: Config) -> TaskOut:
    """Train a few steps of a recipe, for its estimates to go by; nothing is kept of the model."""
    recipe = recommendation.resolve_precision(db, asked.recipe).recipe
    runs.check(db, recipe)
    return chore_out(calibrations.enqueue(db, recipe, config))


@router.post("/measurement", status_code=202)
def measure(asked: EstimateRequest, db: DB, config: Config) -> TaskOut:
    """Go through a step of a recipe in shapes alone, without the memory it would take.

    Once it has been done, estimates of steps like it count every tensor; asking again returns the
    same.
    """
    recipe = recommendation.resolve_precision(db, asked.recipe).recipe
    runs.check(db, recipe)
    return chore_out(dry_runs.enqueue(db, recipe, config))


def estimate_for(db: Session, recipe: AnyRecipe) -> Estimate:
    """Estimate what a recipe would need.

    Raises:
        InvalidError: there is no such model or data set.

    """
    known = estimates.load_inputs(db)
    made = estimates.estimate_recipe(db, recipe, known)
    ways = fit_suggestions.suggest(db, recipe, known)
    return Estimate(
        memory=_memory_out(made.memory),
        measured_bytes=made.measured,
        time=TimeOut.model_validate(made.timing),
        smallest_change=_change_out(ways.smallest),
        largest_batch=_change_out(ways.largest),
    )


def _memory_out(needed: MemoryEstimate | None) -> MemoryOut | None:
    if needed is None:
        return None
    return MemoryOut(
        total=needed.total,
        moment=needed.estimate.moment,
        parts=needed.estimate.parts,
        length=needed.estimate.length,
        knows_lengths=needed.knows_lengths,
        is_exact=needed.is_exact,
        closed_total=needed.closed,
        assumed=needed.assumed,
        factor=needed.learnt.factor,
        factor_runs=needed.learnt.runs,
        beside=needed.beside,
        room=needed.room,
        host=None if needed.host is None else _host_out(needed.host),
        verdict=needed.verdict,
    )


def _change_out(way: RecipeChange | None) -> SuggestedChangeOut | None:
    return SuggestedChangeOut(title=way.title, change=dict(way.change)) if way else None


def _host_out(host: HostMemory) -> HostOut:
    return HostOut(**asdict(host), total=host.total, verdict=host.verdict)
