"""The base models to choose from, on this machine and on the Hub, and whether each fits here.

The estimates come from each model's dimensions alone: its weights are not read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sqlmodel import Session

from studio.db.tables import Model
from studio.errors import StudioError
from studio.methods import DEFAULT_METHOD, METHODS, AnyRecipe, model_compatibility
from studio.methods.base import Method
from studio.recipe.precision import AUTO
from studio.services.estimates import estimates
from studio.services.estimates.estimates import EstimateInputs, MemoryEstimate
from studio.services.models import models
from studio.services.precision import recommendation
from studio.services.precision.number_formats import DTYPE_BYTES
from studio.services.workers import workers
from studio.weights import known_models
from studio.weights import model_facts as weights
from studio.weights.architectures import FAMILY_KINDS
from studio.weights.known_models import KnownModel
from studio.weights.model_facts import ModelFacts

_MAX_LISTED = 200
"""Most models of this machine that a catalogue has, the newest first."""

_KNOWN_MODELS = (
    *known_models.KNOWN_MODELS,
    *known_models.KNOWN_ENCODER_DECODERS,
    *known_models.KNOWN_ENCODERS,
    *known_models.KNOWN_IMAGE_TEXT_MODELS,
)

FitEstimate = Callable[[ModelFacts], MemoryEstimate | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """A base model to choose from. Unknown facts are empty or 0."""

    name: str
    """What a recipe calls it."""
    family: str
    parameters: int
    bytes: int
    """Size of its weights."""
    listed: Model | None = None
    """The model in the studio's list; None if it is on the Hub only."""
    is_gated: bool = False
    is_chat: bool = True
    is_trainable: bool = True
    """Whether the method can train models of its family."""
    memory: MemoryEstimate | None = None
    """Memory that the recipe would need with it; None if unknown."""

    @property
    def is_local(self) -> bool:
        return self.listed is not None and models.is_local(self.listed)


def list_entries(
    db: Session, recipe: AnyRecipe | None, method: Method = METHODS[DEFAULT_METHOD]
) -> list[CatalogueEntry]:
    """Return the listed models, newest first, then known ones on the Hub, smallest first.

    Listed models that the method cannot train come last of theirs; others are left out.
    """
    listed = models.newest(db, limit=_MAX_LISTED)
    fit = _make_fit_estimate(db, recipe) if recipe else _unknown_fit
    entries = [_listed_entry(model, fit) for model in listed]
    marked = [replace(one, is_trainable=is_trainable(one.family, method)) for one in entries]
    return [
        *sorted(marked, key=lambda entry: not entry.is_trainable),
        *(
            _known_entry(known, fit)
            for known in _other_known(listed)
            if is_trainable(known.family, method)
        ),
    ]


def is_trainable(family: str, method: Method) -> bool:
    """Whether a method can train models of a family, as far as the family tells."""
    kind = FAMILY_KINDS.get(family)
    return not model_compatibility.untrainable_reason(kind, family, [method])


def suggest(db: Session, method: Method) -> str:
    """Return a base model to start with: one that is here, else a small one on the Hub."""
    entries = [entry for entry in list_entries(db, None, method) if entry.is_trainable]
    bases = [one for one in entries if one.family and (not one.listed or one.listed.kind != "run")]
    return bases[0].name if bases else ""


def find_known(db: Session, recipe: AnyRecipe | None, name: str) -> CatalogueEntry | None:
    """Return a known model on the Hub by its name."""
    known = next((known for known in _KNOWN_MODELS if known.repo == name), None)
    fit = _make_fit_estimate(db, recipe) if recipe else _unknown_fit
    return _known_entry(known, fit) if known else None


def _other_known(listed: Sequence[Model]) -> list[KnownModel]:
    names = {model.repo for model in listed} | {model.name for model in listed}
    return [known for known in _KNOWN_MODELS if known.repo not in names]


def _known_entry(known: KnownModel, fit: FitEstimate) -> CatalogueEntry:
    facts = known.facts
    return CatalogueEntry(
        name=known.repo,
        family=known.family,
        parameters=facts.parameters,
        bytes=known.bytes,
        is_gated=known.is_gated,
        is_chat=known.is_chat,
        memory=fit(facts),
    )


def _listed_entry(model: Model, fit: FitEstimate) -> CatalogueEntry:
    facts = _config_facts(model)
    return CatalogueEntry(
        name=model.name,
        listed=model,
        family=str(model.facts.get("model_type") or ""),
        parameters=int(model.facts.get("parameters") or 0),
        bytes=int(model.facts.get("bytes") or 0),
        is_chat=bool(model.facts.get("template", True)),
        memory=fit(facts) if facts else None,
    )


def _config_facts(model: Model) -> ModelFacts | None:
    """Return what a listed model's config tells; None if it is not here or not readable."""
    folder = Path(model.location)
    try:
        facts = weights.from_config(folder) if folder.is_absolute() else ModelFacts()
    except (StudioError, OSError):
        return None
    native = str(model.facts.get("native") or facts.declared_dtype)
    dtype = next((name for name in DTYPE_BYTES if name == native), None)
    if facts.shape is None or dtype is None:
        return None
    parameters = int(model.facts.get("parameters") or 0)
    return known_models.facts_from_shape(facts.shape, facts.family, dtype, parameters)


def _unknown_fit(_facts: ModelFacts) -> None:
    return None


def _make_fit_estimate(db: Session, recipe: AnyRecipe) -> FitEstimate:
    """Return a function that estimates the recipe's memory with another base model.

    It assumes the example lengths that are known for the recipe's own model, or for another one:
    tokenizers differ less than the data does from the longest allowed.
    """
    inputs, hardware = estimates.load_inputs(db), workers.training_hardware(db)
    names = [recipe.base_model, *(model.name for model in models.newest(db, limit=_MAX_LISTED))]
    same_data = (recipe.model_copy(update={"base_model": name}) for name in dict.fromkeys(names))
    lengths = next(filter(None, map(inputs.lengths, same_data)), None)
    same_lengths = EstimateInputs((), inputs.facts_for, (), lambda _recipe: lengths)

    def fit(facts: ModelFacts) -> MemoryEstimate | None:
        resolved = recipe
        if recipe.precision == AUTO:
            mode = recommendation.recommend(recipe, facts, hardware).mode
            resolved = recipe.model_copy(update={"precision": mode.name})
        correction = inputs.correction_for(resolved)
        return estimates.formula_estimate(resolved, facts, same_lengths, correction)

    return fit
