"""The assumptions of the memory formula for a recipe, as sentences."""

from collections.abc import Iterator

from studio.methods import AnyRecipe
from studio.recipe.precision import PRECISIONS
from studio.services.estimates import activation_memory
from studio.services.precision import number_formats
from studio.weights.model_facts import ModelFacts

EMULATED = (
    "Assumes emulated products: attention keeps its scores, because no fused kernel rounds its "
    "inputs."
)
EIGHT_BITS = "Assumes no 16-bit copies of weights: each 8-bit product casts its own and frees it."
UNMEASURED = "On a GPU this is derived from the packages' source code and has not been measured."


def list_assumptions(recipe: AnyRecipe, facts: ModelFacts, *, on_gpu: bool) -> Iterator[str]:
    """Yield assumptions beyond those of every estimate; none for plain recipes."""
    row, mode = recipe.adapter.quantised, PRECISIONS[recipe.precision]
    if row is not None:
        yield (
            f"Assumes linear layers in {row.title} with their scales and everything else in "
            f"{number_formats.weight_dtype(recipe, facts)}; products widen one weight at a time."
        )
    if activation_memory.emulates_bfloat16(recipe):
        yield EMULATED
    if mode.is_float8:
        yield EIGHT_BITS
    if on_gpu and (
        row is not None or activation_memory.emulates_bfloat16(recipe) or mode.is_float8
    ):
        yield UNMEASURED
