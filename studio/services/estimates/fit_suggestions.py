"""Suggest the smallest change that makes a recipe fit, and the largest batch size that fits."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from sqlmodel import Session

from studio.errors import InvalidError
from studio.methods import RECIPE_ADAPTER, AnyRecipe
from studio.recipe.adapters import FullFineTune
from studio.recipe.base import find_conflict
from studio.recipe.dotted_keys import merge
from studio.recipe.precision import PRECISIONS
from studio.services.estimates import estimates
from studio.services.estimates.estimates import EstimateInputs
from studio.services.precision import recommendation
from studio.services.precision.incompatibilities import check
from studio.services.workers import workers

MAX_BATCH = 4096
"""The largest batch size a recipe may have."""

_MIN_LENGTH = 64
_MIN_UPDATES = 32
"""The fewest updates an epoch should have: larger batch sizes are not recommended."""

FitsCheck = Callable[[AnyRecipe], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeChange:
    """A change of a recipe, as text and as values."""

    title: str
    change: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSuggestions:
    smallest: RecipeChange | None = None
    """The change that makes it fit; None if it fits already or nothing helps."""
    largest: RecipeChange | None = None
    """The largest batch size that fits; None if the recipe's is as large."""


def suggest(db: Session, recipe: AnyRecipe, inputs: EstimateInputs) -> FitSuggestions:
    """Suggest how a recipe can fit into memory or use more of it."""
    facts = recommendation.load_model_facts(db, recipe.base_model)
    correction, hardware = (
        estimates.formula_correction(db, recipe, facts, inputs),
        workers.training_hardware(db),
    )

    def fits(changed: AnyRecipe) -> bool:
        if find_conflict(changed) or check(changed, facts, hardware):
            return False
        estimate = estimates.formula_estimate(changed, facts, inputs, correction)
        return estimate is not None and estimate.verdict == "fits"

    if estimates.formula_estimate(recipe, facts, inputs, correction) is None:
        return FitSuggestions()
    lengths = inputs.lengths(recipe)
    return FitSuggestions(
        smallest=None if fits(recipe) else smallest_change(recipe, fits),
        largest=largest_batch(recipe, fits, lengths.examples if lengths else MAX_BATCH),
    )


def smallest_change(recipe: AnyRecipe, fits: FitsCheck) -> RecipeChange | None:
    """Return the first single change that makes a recipe fit, else the fewest combined."""
    strategies = [list(strategy(recipe)) for strategy in _STRATEGIES]
    for change in (change for changes in strategies for change in changes):
        if _fits_with(recipe, change.change, fits):
            return change
    last = [changes[-1] for changes in strategies if changes]
    for change in accumulate(last, _combine):
        if _fits_with(recipe, change.change, fits):
            return change
    return None


def largest_batch(recipe: AnyRecipe, fits: FitsCheck, examples: int) -> RecipeChange | None:
    """Return the largest batch size that fits, a power of two because devices prefer those.

    None if the recipe's own is as large, or if an epoch would have too few updates.

    """
    own = recipe.optimisation.per_device_train_batch_size
    largest = min(MAX_BATCH, examples // _MIN_UPDATES)
    sizes = [2**power for power in range(MAX_BATCH.bit_length()) if own < 2**power <= largest]
    size = next(
        (
            candidate
            for candidate in reversed(sizes)
            if _fits_with(recipe, _batch_change(candidate), fits)
        ),
        None,
    )
    if size is None:
        return None
    reason = "still fits" if size == sizes[-1] else "the largest that fits"
    return RecipeChange(
        title=f"Increase batch size to {size} ({reason})", change=_batch_change(size)
    )


def _fits_with(recipe: AnyRecipe, change: Mapping[str, Any], fits: FitsCheck) -> bool:
    try:
        return fits(RECIPE_ADAPTER.validate_python(merge(recipe.model_dump(), change)))
    except (InvalidError, ValueError):
        return False


def _combine(first: RecipeChange, second: RecipeChange) -> RecipeChange:
    title = f"{first.title}, {second.title[0].lower()}{second.title[1:]}"
    return RecipeChange(title=title, change=merge(first.change, second.change))


def _batch_change(size: int) -> dict[str, Any]:
    return {"optimisation": {"per_device_train_batch_size": size}}


def _smaller_batches(recipe: AnyRecipe) -> Iterator[RecipeChange]:
    """Suggest smaller batches with more accumulation steps, which train the same."""
    optimisation = recipe.optimisation
    effective_batch = (
        optimisation.per_device_train_batch_size * optimisation.gradient_accumulation_steps
    )
    for size in range(optimisation.per_device_train_batch_size - 1, 0, -1):
        if effective_batch % size == 0 and effective_batch // size <= MAX_BATCH:
            accumulation = {"gradient_accumulation_steps": effective_batch // size}
            title = f"Use batch size {size} with {effective_batch // size} accumulation steps"
            yield RecipeChange(
                title=title, change=merge(_batch_change(size), {"optimisation": accumulation})
            )


def _activation_checkpointing(recipe: AnyRecipe) -> Iterator[RecipeChange]:
    if not recipe.optimisation.activation_checkpointing:
        change = {"optimisation": {"activation_checkpointing": True}}
        yield RecipeChange(title="Use activation checkpointing", change=change)


def _lora_adapter(recipe: AnyRecipe) -> Iterator[RecipeChange]:
    if isinstance(recipe.adapter, FullFineTune):
        change: dict[str, Any] = {"adapter": {"kind": "lora"}}
        if PRECISIONS[recipe.precision].is_for_all_weights:
            change["precision"] = "bf16"
        yield RecipeChange(title="Train a LoRA adapter", change=change)


def _shorter_examples(recipe: AnyRecipe) -> Iterator[RecipeChange]:
    length = recipe.data.max_length // 2
    while length >= _MIN_LENGTH:
        yield RecipeChange(
            title=f"Set max sequence length to {length:,} tokens",
            change={"data": {"max_length": length}},
        )
        length //= 2


def _smaller_precisions(recipe: AnyRecipe) -> Iterator[RecipeChange]:
    """Suggest precisions that need less memory, the closest first."""
    current_bytes = PRECISIONS[recipe.precision].bytes_per_parameter
    smaller = [
        precision
        for precision in PRECISIONS.values()
        if precision.bytes_per_parameter < current_bytes
    ]
    for precision in sorted(smaller, key=lambda mode: -mode.bytes_per_parameter):
        yield RecipeChange(title=f"Use {precision.title}", change={"precision": precision.name})


_STRATEGIES = (
    _smaller_batches,
    _activation_checkpointing,
    _lora_adapter,
    _shorter_examples,
    _smaller_precisions,
)
