"""The REST route that plans a recipe: number formats, estimates, refusals and warnings."""

from typing import Any

from fastapi import APIRouter, Request

from studio.db.session import read_session
from studio.methods import AnyRecipe
from studio.services.datasets import data_quality, token_stats
from studio.services.precision import number_formats, recommendation
from studio.services.runs import start_checks
from studio.web.api.conventions.api_route import ApiRoute
from studio.web.api.conventions.schemas import Body, Out
from studio.web.api.runs import estimate
from studio.web.api.runs.estimate import Estimate

router = APIRouter(route_class=ApiRoute, prefix="/api/v1/plan", tags=["runs"])


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


@router.post("")
def show(asked: PlanRequest, request: Request) -> PlanAnswer:
    """Plan a recipe. Starts nothing and saves nothing."""
    with read_session(request.app.state.engine) as db:
        facts = recommendation.load_model_facts(db, asked.recipe.base_model)
        recommended = recommendation.recommend_for_machine(db, asked.recipe, facts)
        recipe = recommendation.resolve_precision(db, asked.recipe).recipe
        refusals = start_checks.check(db, recipe, facts)
        notice = data_quality.build_notice(db, recipe)
        token_warnings = list(token_stats.list_warnings(db, recipe))
        needs = estimate.estimate_for(db, recipe)
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
