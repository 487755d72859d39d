"""What precision suits a model on this machine, and what to know of the one that was chosen."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from sqlmodel import Session

from studio.errors import InvalidError
from studio.hardware import Hardware
from studio.methods import RECIPES, AnyRecipe
from studio.recipe.adapters import FullFineTune
from studio.recipe.dotted import merge
from studio.recipe.formats import DType
from studio.recipe.precision import AMPERE, PRECISIONS, VOLTA, Precision
from studio.services import cautions, models
from studio.services.refusals import refusals
from studio.weights import facts as weights
from studio.weights import families
from studio.weights.facts import ModelFacts

_NO_TENSOR_CORES = "GeForce GTX 16"
"""Cards that count as Turing without its float16 units, and were seen to give NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    mode: Precision
    """What we would choose."""
    sentence: str
    """Why, with the evidence for it."""
    warnings: tuple[str, ...]
    """What to know of the recipe as it stands."""


def facts_of(db: Session, name: str) -> ModelFacts:
    """Return what is known of a recipe's base model; of one on the hub, what is at hand of it.

    Raises:
        InvalidError: there is no such model, or its files cannot be read.

    """
    try:
        location = models.require(db, name)
        return facts(Path(location)) if Path(location).is_absolute() else _fetched(location)
    except OSError as error:
        raise InvalidError(
            f"{name[:200]} cannot be read: {error.strerror}.", param="base_model"
        ) from error


def facts(folder: Path) -> ModelFacts:
    """Return what is known of a model in a folder; read again only when a file changed."""
    known = [(path, path.stat()) for path in weights.watched(folder)]
    return _read(folder, tuple((path, one.st_mtime_ns, one.st_size) for path, one in known))


def advise(recipe: AnyRecipe, facts: ModelFacts, hardware: Hardware) -> Advice:
    """Recommend a precision, and warn of what the chosen one will do."""
    mode, why = _recommended(recipe, facts, hardware)
    return Advice(
        mode=mode, sentence=f"{mode.title}: {why}.", warnings=tuple(cautions.of(recipe, facts))
    )


@lru_cache(maxsize=128)
def _read(folder: Path, _state: tuple[Any, ...]) -> ModelFacts:
    return weights.read(folder)


def _fetched(name: str) -> ModelFacts:
    """Return what the hub's cache holds of a model, if it was ever fetched. Asks nobody."""
    from huggingface_hub import errors, try_to_load_from_cache  # noqa: PLC0415 -- heavy import

    try:
        config = try_to_load_from_cache(name, "config.json")
    except errors.HFValidationError as error:
        raise InvalidError(
            f"{name} is no name the hub gives.",
            hint="A hub model is written owner/name.",
            param="base_model",
        ) from error
    if not isinstance(config, str):
        return ModelFacts()
    try:
        return facts(Path(config).parent)
    except InvalidError:
        # Half a download is no fault: the run will fetch the rest.
        return weights.from_config(Path(config).parent)


def _recommended(recipe: AnyRecipe, facts: ModelFacts, hardware: Hardware) -> tuple[Precision, str]:
    """Return the first of the candidates that nothing speaks against."""
    for compute, why in _candidates(recipe, facts, hardware):
        mode = next(one for one in PRECISIONS.values() if one.is_common and one.compute == compute)
        changed = merge(recipe.model_dump(), {"precision": mode.name})
        if not refusals(RECIPES.validate_python(changed), facts, hardware):
            return mode, why
    return PRECISIONS["fp32"], "nothing else can hold these weights"


def _candidates(
    recipe: AnyRecipe, facts: ModelFacts, hardware: Hardware
) -> Iterator[tuple[DType, str]]:
    """Offer formats to compute in, the best first, each with its reason."""
    if has_bfloat16(hardware):
        yield "bfloat16", f"native on {hardware.title}, with float32's range{_seen(facts)}"
    elif _has_float16(hardware):
        yield from _halves(recipe, facts, hardware)
    yield "float32", f"{_lack(facts, hardware)}{_seen(facts)}"


def _halves(
    recipe: AnyRecipe, facts: ModelFacts, hardware: Hardware
) -> Iterator[tuple[DType, str]]:
    """Offer float16 on hardware without bfloat16, unless the model is known to overflow it."""
    is_full = isinstance(recipe.adapter, FullFineTune)
    if facts.family in families.FLOAT16 or (facts.native == "bfloat16" and is_full):
        return
    why = f"native on {hardware.title}, which lacks bfloat16{_seen(facts)}"
    if facts.native == "bfloat16":
        why = f"native on {hardware.title}, which lacks bfloat16{_seen(facts)}; watch skipped steps"
    yield "float16", why


def has_bfloat16(hardware: Hardware) -> bool:
    """Whether the machine computes bfloat16 itself, rather than emulating it."""
    if hardware.device == "cpu":
        return hardware.native_bf16
    return hardware.capability >= AMPERE


def _has_float16(hardware: Hardware) -> bool:
    if hardware.device == "cpu" or hardware.capability < VOLTA:
        return False
    return all(_NO_TENSOR_CORES not in gpu.name for gpu in hardware.gpus)


def _lack(facts: ModelFacts, hardware: Hardware) -> str:
    """Say what keeps a run from 16 bits."""
    if facts.mixed_float64:
        return "some layers are stored in float64"
    if has_bfloat16(hardware):
        return "the weights do not suit 16 bits"
    known = families.FLOAT16.get(facts.family)
    if known and _has_float16(hardware):
        return f"{hardware.title} lacks bfloat16, and in float16 {known.why} ({known.source})"
    return f"{hardware.title} computes nothing narrower fast and safely"


def _seen(facts: ModelFacts) -> str:
    """Name the evidence: what the weights look like."""
    largest = facts.spread.largest
    if not facts.has_weights or largest is None:
        return ""
    return f" (weights are {facts.native}, the largest seen {largest:.3g})"
