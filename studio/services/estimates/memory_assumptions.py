"""What the closed form of memory takes for granted of a recipe, in words."""

from collections.abc import Iterator

from studio.methods import AnyRecipe
from studio.recipe.precision import PRECISIONS
from studio.services.estimates import activation_memory
from studio.services.precision import number_formats
from studio.weights.model_facts import ModelFacts

EMULATED = (
    "Counted as products are emulated: attention keeps its scores, for no fused kernel rounds what "
    "it multiplies."
)
EIGHT_BITS = (
    "Counted with no narrow copies of weights: each product of 8 bits casts its own and forgets it."
)
UNMEASURED = "On a GPU this follows from the packages' sources: nobody has measured it here."


def list_assumptions(recipe: AnyRecipe, facts: ModelFacts, *, on_gpu: bool) -> Iterator[str]:
    """Say what is assumed beyond what every estimate assumes; nothing of plain recipes."""
    row, mode = recipe.adapter.quantised, PRECISIONS[recipe.precision]
    if row is not None:
        yield (
            f"Counted with the linear layers in {row.title} with their scales, and all else in "
            f"{number_formats.weight_dtype(recipe, facts)}; a product widens one weight at a time."
        )
    if activation_memory.emulates_bfloat16(recipe):
        yield EMULATED
    if mode.is_float8:
        yield EIGHT_BITS
    if on_gpu and (
        row is not None or activation_memory.emulates_bfloat16(recipe) or mode.is_float8
    ):
        yield UNMEASURED
