"""The training methods. To add one, create a folder here and add its name to the list."""

from collections.abc import Mapping
from functools import reduce
from importlib import import_module
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Discriminator, Tag, TypeAdapter

from studio import metrics
from studio.errors import NotFoundError
from studio.evaluation.run_metrics import RUN_METRICS
from studio.methods.base import Method
from studio.metrics import Direction, MetricSpec
from studio.recipe.base import upgrade

_NAMES = (
    "sft",
    "cpt",
    "vision",
    "dpo",
    "kto",
    "grpo",
    "rloo",
    "distil",
    "seq2seq",
    "reward",
    "classify",
    "regress",
    "tokens",
    "prm",
    "embed",
    "rerank",
)
"""The folders of the methods, in the order in which users choose between them. Each has a `METHOD`,
and a module `trainer` with `build` and `tokenise`; maybe also with `choose_head`, which says what
its models end in."""


def _load(name: str) -> Method:
    method: Method = import_module(f"{__name__}.{name}").METHOD
    return method


METHODS: dict[str, Method] = {name: _load(name) for name in _NAMES}
DEFAULT_METHOD = "sft"
"""The method of recipes that name none: those from before there were several."""
METRICS: Mapping[str, MetricSpec] = {
    **metrics.catalogue(method.metrics for method in METHODS.values()),
    **RUN_METRICS,
}
"""All metrics of all methods and of evaluations by key, in display order."""
OBJECTIVES = tuple(dict.fromkeys(method.objective.key for method in METHODS.values()))
"""The metrics that the methods optimise."""
DEFAULT_OBJECTIVE = METHODS[DEFAULT_METHOD].objective.key
"""The metric in tables of runs, which may be of several methods."""
MAIN_METRICS = ("loss", *OBJECTIVES)
"""The metrics that commands and comparisons show by default."""


def get_method(name: str) -> Method:
    """Return the method with a name.

    Raises:
        NotFoundError: there is none.

    """
    if name not in METHODS:
        raise NotFoundError(f"There is no method named {name}.", hint=f"Try {', '.join(METHODS)}.")
    return METHODS[name]


def readers(kind: str) -> list[Method]:
    """Return the methods that can train on rows of a kind, the most suitable first."""
    fitting = [method for method in METHODS.values() if kind in method.trains_on]
    return sorted(fitting, key=lambda method: list[str](method.trains_on).index(kind))


def count_sequences(recipe: "AnyRecipe", rows: int) -> int:
    """Return how many sequences the model reads for a number of rows."""
    sequences = METHODS[recipe.method].sequences_per_row + recipe.extra_sequences
    return rows * sequences * recipe.answers_per_prompt


def direction(key: str) -> Direction:
    """Return the better direction of a metric, or empty if it has none or is unknown."""
    spec = METRICS.get(key)
    return spec.better if spec else ""


def _upgrade_values(values: Any) -> Any:  # noqa: ANN401 -- whatever was stored or sent
    return upgrade(values) if isinstance(values, dict) else values


def method(values: Any) -> str:  # noqa: ANN401 -- a recipe, or what was stored or sent
    """Return the name of the method that values are for; errors name this function as the field."""
    if isinstance(values, Mapping):
        return str(values.get("method", DEFAULT_METHOD))
    return str(getattr(values, "method", DEFAULT_METHOD))


if TYPE_CHECKING:
    from studio.recipe.base import Recipe

    AnyRecipe = Recipe
else:
    _RECIPES = (Annotated[method.recipe, Tag(name)] for name, method in METHODS.items())
    AnyRecipe = Annotated[reduce(or_, _RECIPES), Discriminator(method)]
StoredRecipe = Annotated[AnyRecipe, BeforeValidator(_upgrade_values)]
RECIPE_ADAPTER = TypeAdapter[AnyRecipe](StoredRecipe)
