"""The training methods. To add one, create a folder here and list it in each place below."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Tag, TypeAdapter

from studio import metrics
from studio.methods.base import Method
from studio.methods.cpt import METHOD as CPT
from studio.methods.cpt import CPTRecipe
from studio.methods.sft import METHOD as SFT
from studio.methods.sft import SFTRecipe
from studio.metrics import Direction
from studio.recipe.upgrade import upgrade

METHODS: dict[str, Method] = {method.name: method for method in (SFT, CPT)}
METRICS = metrics.catalogue(method.metrics for method in METHODS.values())
"""All metrics of all methods by key, in display order."""


def readers(kind: str) -> list[Method]:
    """Return the methods that can train on rows of a kind, the most suitable first."""
    fitting = [method for method in METHODS.values() if kind in method.trains_on]
    return sorted(fitting, key=lambda method: list[str](method.trains_on).index(kind))


def direction(key: str) -> Direction:
    """Return the better direction of a metric, or empty if it has none or is unknown."""
    spec = METRICS.get(key)
    return spec.better if spec else ""


def _upgrade_values(values: Any) -> Any:  # noqa: ANN401 -- whatever was stored or sent
    return upgrade(values) if isinstance(values, dict) else values


def _method_name(values: Any) -> str:  # noqa: ANN401 -- a recipe, or what was stored or sent
    """Return which recipe values are for. Recipes from before there were methods name none."""
    if isinstance(values, Mapping):
        return str(values.get("method", SFT.name))
    return str(getattr(values, "method", SFT.name))


AnyRecipe = Annotated[
    Annotated[SFTRecipe, Tag(SFT.name)] | Annotated[CPTRecipe, Tag(CPT.name)],
    Discriminator(_method_name),
]
StoredRecipe = Annotated[AnyRecipe, BeforeValidator(_upgrade_values)]
RECIPE_ADAPTER = TypeAdapter[AnyRecipe](StoredRecipe)
