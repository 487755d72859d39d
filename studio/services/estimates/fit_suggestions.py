"""Making a recipe fit: the smallest change that does it, and the largest batch that fits."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from sqlmodel import Session

from studio.errors import InvalidError
from studio.methods import RECIPES, AnyRecipe
from studio.recipe.adapters import FullFineTune
from studio.recipe.constraints import find_conflict
from studio.recipe.dotted_keys import merge
from studio.recipe.precision import PRECISIONS
from studio.services.estimates import estimates
from studio.services.estimates.estimates import Known
from studio.services.precision import recommendation
from studio.services.precision.incompatibilities import refusals
from studio.services.workers import workers

LARGEST = 4096
"""The largest batch a recipe may name."""

_LEAST_LENGTH = 64
_UPDATES = 32
"""An epoch of fewer updates than these teaches little: larger batches are not recommended."""

Fits = Callable[[AnyRecipe], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A change of a recipe, in words and as values."""

    title: str
    change: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    smallest: Way | None = None
    """What would make it fit; None where it fits as it is, or nothing helps."""
    largest: Way | None = None
    """The largest batch that fits; None where that is the recipe's own."""


def of(db: Session, recipe: AnyRecipe, by: Known) -> Fitting:
    """Find out how a recipe could fill the memory there is, and not more."""
    facts = recommendation.facts_of(db, recipe.base_model)
    learnt, hardware = estimates.missed(db, recipe, facts, by), workers.machine(db)

    def fits(changed: AnyRecipe) -> bool:
        if find_conflict(changed) or refusals(changed, facts, hardware):
            return False
        need = estimates.needed(changed, facts, by, learnt)
        return need is not None and need.verdict == "fits"

    if estimates.needed(recipe, facts, by, learnt) is None:
        return Fitting()
    lengths = by.lengths(recipe)
    return Fitting(
        smallest=None if fits(recipe) else smallest(recipe, fits),
        largest=largest(recipe, fits, lengths.examples if lengths else LARGEST),
    )


def smallest(recipe: AnyRecipe, fits: Fits) -> Way | None:
    """Return the first single change that makes a recipe fit, else the fewest together."""
    single = [list(kind(recipe)) for kind in _KINDS]
    for way in (way for ways in single for way in ways):
        if _changed(recipe, way.change, fits):
            return way
    last = [ways[-1] for ways in single if ways]
    for way in accumulate(last, _both):
        if _changed(recipe, way.change, fits):
            return way
    return None


def largest(recipe: AnyRecipe, fits: Fits, examples: int) -> Way | None:
    """Return the largest batch that fits, a power of two as devices like them best.

    None where the recipe's own is as large, or where an epoch would have too few updates.
    """
    own = recipe.optimisation.per_device_train_batch_size
    most = min(LARGEST, examples // _UPDATES)
    sizes = [2**power for power in range(LARGEST.bit_length()) if own < 2**power <= most]
    size = next((one for one in reversed(sizes) if _changed(recipe, _batch(one), fits)), None)
    if size is None:
        return None
    why = "they fit as well" if size == sizes[-1] else "the largest that fit"
    return Way(title=f"Use batches of {size}, {why}", change=_batch(size))


def _changed(recipe: AnyRecipe, change: Mapping[str, Any], fits: Fits) -> bool:
    try:
        return fits(RECIPES.validate_python(merge(recipe.model_dump(), change)))
    except (InvalidError, ValueError):
        return False


def _both(one: Way, other: Way) -> Way:
    title = f"{one.title}, {other.title[0].lower()}{other.title[1:]}"
    return Way(title=title, change=merge(one.change, other.change))


def _batch(size: int) -> dict[str, Any]:
    return {"optimisation": {"per_device_train_batch_size": size}}


def _smaller(recipe: AnyRecipe) -> Iterator[Way]:
    """Offer smaller batches, more of them to an update: what is learnt stays the same."""
    knobs = recipe.optimisation
    whole = knobs.per_device_train_batch_size * knobs.gradient_accumulation_steps
    for size in range(knobs.per_device_train_batch_size - 1, 0, -1):
        if whole % size == 0 and whole // size <= LARGEST:
            times = {"gradient_accumulation_steps": whole // size}
            title = f"Use batches of {size}, {whole // size} to an update"
            yield Way(title=title, change=merge(_batch(size), {"optimisation": times}))


def _checkpointed(recipe: AnyRecipe) -> Iterator[Way]:
    if not recipe.optimisation.activation_checkpointing:
        change = {"optimisation": {"activation_checkpointing": True}}
        yield Way(title="Use activation checkpointing", change=change)


def _thinner(recipe: AnyRecipe) -> Iterator[Way]:
    if isinstance(recipe.adapter, FullFineTune):
        change: dict[str, Any] = {"adapter": {"kind": "lora"}}
        if PRECISIONS[recipe.precision].is_for_all_weights:
            change["precision"] = "bf16"
        yield Way(title="Train a LoRA adapter", change=change)


def _shorter(recipe: AnyRecipe) -> Iterator[Way]:
    length = recipe.data.max_length // 2
    while length >= _LEAST_LENGTH:
        yield Way(
            title=f"Cut examples at {length:,} tokens", change={"data": {"max_length": length}}
        )
        length //= 2


def _narrower(recipe: AnyRecipe) -> Iterator[Way]:
    """Offer the precisions that need less, the one that changes least first."""
    least = PRECISIONS[recipe.precision].bytes_per_parameter
    leaner = [one for one in PRECISIONS.values() if one.bytes_per_parameter < least]
    for one in sorted(leaner, key=lambda mode: -mode.bytes_per_parameter):
        yield Way(title=f"Use {one.title}", change={"precision": one.name})


_KINDS = (_smaller, _checkpointed, _thinner, _shorter, _narrower)
