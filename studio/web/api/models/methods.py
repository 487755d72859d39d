"""REST routes of training methods, with their recipe schemas, and of precision modes."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from studio.hardware import Hardware
from studio.methods import DEFAULT_METHOD, METHODS, RECIPE_ADAPTER, AnyRecipe, get_method
from studio.methods.base import Method
from studio.recipe.precision import PRECISIONS, Precision
from studio.services.precision import incompatibilities, recommendation
from studio.services.workers import workers
from studio.web.api.conventions.api_route import ApiRoute
from studio.web.api.conventions.schemas import Listing, Out
from studio.web.http.deps import DB
from studio.weights.model_facts import ModelFacts

router = APIRouter(route_class=ApiRoute, prefix="/api/v1", tags=["methods"])

ModelName = Annotated[str, Query(max_length=1000)]


class TrainingMethodOut(Out):
    name: str
    title: str
    summary: str
    presets: dict[str, dict[str, Any]]
    recipe_schema: dict[str, Any]
    """JSON Schema of the recipe, with bounds, defaults and help texts."""


class PrecisionOut(Out):
    name: str
    title: str
    summary: str
    weights: str
    compute: str
    gradients: str
    optimizer_states: str
    matmul: str
    """The input format of matrix products; `compute` is their output format."""
    matmul_of_gradients: str | None
    """The input format for gradients, if different."""
    optimizer: str
    master: str | None
    """The format of the optimizer's master weights, if it has any."""
    scaler: bool
    bytes_per_parameter: int
    param_dtype: str
    """With FSDP: the format in which GPUs all-gather weights."""
    reduce_dtype: str
    """With FSDP: the format in which gradients are reduced."""
    package: str
    """The optional package it requires, if any."""
    needs: str
    detected: str
    available: bool
    reason: str
    """Why it is not available on this machine."""
    caution: str
    """What to consider before using it on this machine."""
    recommended: bool
    """Whether it is recommended on this machine for the given model."""
    warnings: list[str]
    """Its effects on that model's weights, at the recipe's default learning rate."""


@router.get("/methods")
def methods() -> Listing[TrainingMethodOut]:
    return Listing.complete([_method_out(method_spec) for method_spec in METHODS.values()])


@router.get("/methods/{name}")
def method(name: str) -> TrainingMethodOut:
    return _method_out(get_method(name))


@router.get("/precisions")
def precisions(
    db: DB, model: ModelName = "", method: str = DEFAULT_METHOD
) -> Listing[PrecisionOut]:
    """List the precision modes; with a model, also their effects on it."""
    facts = recommendation.load_model_facts(db, model) if model else ModelFacts()
    hardware, method_spec = workers.training_hardware(db), get_method(method)
    modes = [
        _precision_out(_example_recipe(method_spec, model, mode), facts, hardware)
        for mode in PRECISIONS.values()
    ]
    if not model:
        modes = [mode.model_copy(update={"warnings": []}) for mode in modes]
    return Listing.complete(modes)


def _method_out(spec: Method) -> TrainingMethodOut:
    return TrainingMethodOut(
        name=spec.name,
        title=spec.title,
        summary=spec.summary,
        presets={preset.name: dict(preset.values) for preset in spec.presets},
        recipe_schema=spec.recipe.model_json_schema(),
    )


def _example_recipe(spec: Method, model: str, mode: Precision) -> AnyRecipe:
    """Return a minimal recipe in a mode: full fine-tuning if the mode requires it."""
    adapter = {"adapter": {"kind": "full"}} if mode.is_for_all_weights else {}
    names = {"base_model": model or "any", "dataset": "any", "precision": mode.name}
    return RECIPE_ADAPTER.validate_python({"method": spec.name} | names | adapter)


def _precision_out(recipe: AnyRecipe, facts: ModelFacts, hardware: Hardware) -> PrecisionOut:
    mode = PRECISIONS[recipe.precision]
    recommended = recommendation.recommend(recipe, facts, hardware)
    reasons = [mode.unsupported_reason(hardware)]
    reasons += [problem.message for problem in incompatibilities.check(recipe, facts, hardware)]
    reason = next(filter(None, reasons), "")
    computed = {
        "available": not reason,
        "reason": reason,
        "caution": mode.warning(hardware),
        "recommended": recommended.mode == mode,
        "warnings": list(recommended.warnings),
    }
    table = {name: getattr(mode, name) for name in PrecisionOut.model_fields.keys() - computed}
    return PrecisionOut.model_validate(table | computed)
