"""The three decisions of an experiment, data, model and goal, and what they amount to here."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from sqlmodel import Session

from studio.db.tables import Dataset, DatasetVersion, Model
from studio.errors import InvalidError
from studio.intake import mapping_text
from studio.intake.mapping import Mapping
from studio.methods import AnyRecipe, model_compatibility
from studio.methods.base import Method, Preset
from studio.methods.rollouts import reward_of
from studio.recipe.precision import AUTO, PRECISIONS
from studio.services.datasets import data_quality, starter_dataset
from studio.services.estimates import model_catalogue
from studio.services.estimates.estimates import MemoryEstimate
from studio.services.models import models
from studio.services.precision import recommendation
from studio.settings import Settings
from studio.web.experiments import reward_choice
from studio.web.experiments.draft_form import ExperimentDraft
from studio.web.experiments.recipe_preview import RecipePreview
from studio.web.experiments.reward_choice import RewardChoice
from studio.web.forms import choices
from studio.web.i18n import formatting
from studio.web.i18n.locale import gettext, ngettext
from studio.web.i18n.translation import translate
from studio.weights.architectures import FAMILY_KINDS
from studio.weights.model_facts import ModelFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class DataChoice:
    """A dataset, as far as it matters for choosing it."""

    dataset: Dataset
    version: DatasetVersion
    words: str
    """How its rows are read, in words."""
    methods: list[Method]
    """The methods that can train on it, the most suitable first."""

    @property
    def is_sample(self) -> bool:
        return self.dataset.source == starter_dataset.NAME

    @property
    def finding_count(self) -> int:
        return len(self.version.findings or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """The base model that is chosen; without a listed model, a folder or a name on the hub."""

    name: str
    listed: Model | None
    family: str
    parameters: int
    bytes: int
    """Size of its weights; 0 if unknown."""
    memory: MemoryEstimate | None
    """None if it is unknown, or the recipe is incomplete or refused."""

    @property
    def is_on_hub(self) -> bool:
        """Whether a run would have to download it."""
        return self.listed is None and "/" in self.name and not self.name.startswith(("/", "~"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    data: DataChoice | None
    """None if no dataset is chosen, or it does not exist."""
    all_data: list[DataChoice]
    model: ModelChoice
    method: Method
    reward: RewardChoice | None
    """What answers are rewarded for; None if the method does not learn from scores."""
    preset: Preset | None
    """None if the experiment is a copy."""
    tuned: "list[TunedPart]"
    """The recipe as it would run, in a line; empty while it is incomplete."""
    is_recommended: bool
    """Whether the studio chose the precision."""

    @property
    def better_goal(self) -> Method | None:
        """The method made for the chosen data, if the form's own is another that can read it.

        A method that cannot train the chosen model is no better.
        """
        fitting = self.data.methods if self.data else []
        family = self.model.family if self.model else ""
        kind = FAMILY_KINDS.get(family)
        if self.method not in fitting[1:]:
            return None
        is_refused = model_compatibility.untrainable_reason(kind, family, fitting[:1])
        return None if is_refused else fitting[0]

    @property
    def better_preset(self) -> Preset | None:
        """The preset for the chosen model, if the form's own is for the starter model only."""
        is_starter = self.model.listed is not None and self.model.listed.kind == "starter"
        if self.preset is None or not self.preset.is_for_starter or is_starter:
            return None
        others = (one for one in self.method.presets if not (one.is_for_starter or one.is_study))
        return next(others, None) if self.model.name else None


@dataclass(frozen=True, slots=True)
class TunedPart:
    """One part of the line that says how a recipe will run."""

    text: str
    help: str = ""
    """Shown as its tooltip."""


def describe(
    db: Session, settings: Settings, draft: ExperimentDraft, preview: RecipePreview
) -> Decisions:
    all_data, chosen = list_data(db), str(draft.values.get("dataset", ""))
    return Decisions(
        data=next((choice for choice in all_data if choice.dataset.name == chosen), None),
        all_data=all_data,
        model=_model_choice(db, draft, preview),
        method=draft.method,
        reward=reward_choice.describe(db, settings, draft.method, draft.values),
        preset=next(
            (preset for preset in draft.method.presets if preset.name == draft.preset), None
        )
        if not draft.parent
        else None,
        tuned=list(_tuned_parts(db, draft.recipe, preview)) if draft.recipe else [],
        is_recommended=draft.values.get("precision", AUTO) == AUTO,
    )


def list_data(db: Session) -> list[DataChoice]:
    """Return the datasets that runs can train on, newest first."""
    return [
        DataChoice(
            dataset=dataset,
            version=version,
            words=mapping_text.describe_mapping(Mapping.model_validate(version.mapping)),
            methods=data_quality.fitting_methods(version),
        )
        for dataset, version in choices.ready_datasets(db)
    ]


def _model_choice(db: Session, draft: ExperimentDraft, preview: RecipePreview) -> ModelChoice:
    name = str(draft.values.get("base_model", ""))
    memory = preview.estimate.memory if preview.estimate else None
    listed = models.find_by_name(db, name)
    if listed:
        return ModelChoice(
            name=name,
            listed=listed,
            family=str(listed.facts.get("model_type") or ""),
            parameters=int(listed.facts.get("parameters") or 0),
            bytes=int(listed.facts.get("bytes") or 0),
            memory=memory,
        )
    if known := model_catalogue.find_known(db, draft.recipe, name):
        return ModelChoice(
            name=name,
            listed=None,
            family=known.family,
            parameters=known.parameters,
            bytes=known.bytes,
            memory=memory or known.memory,
        )
    facts = _read_facts(db, name)
    return ModelChoice(
        name=name,
        listed=None,
        family=facts.family,
        parameters=facts.parameters,
        bytes=0,
        memory=memory,
    )


def _read_facts(db: Session, name: str) -> ModelFacts:
    """Return what is known of a folder, or of a model in the Hub's cache."""
    try:
        return recommendation.load_model_facts(db, name)
    except InvalidError:  # The form says so in its own place.
        return ModelFacts()


def _tuned_parts(db: Session, recipe: AnyRecipe, preview: RecipePreview) -> Iterator[TunedPart]:
    try:
        resolved = recommendation.resolve_precision(db, recipe).recipe
    except InvalidError:
        return  # The model does not exist, so no precision can be recommended.
    reason = preview.summary if recipe.precision == AUTO else ""
    yield TunedPart(translate(PRECISIONS[resolved.precision].title), translate(reason))
    yield TunedPart(_adapter_text(resolved))
    if recipe.adapter.continue_from:
        yield TunedPart(gettext("continues %(run)s") % {"run": recipe.adapter.continue_from})
    yield TunedPart(_batch_text(resolved))
    yield TunedPart(_length_text(resolved))
    if preview.estimate and preview.estimate.memory:
        size = formatting.size(preview.estimate.memory.total)
        yield TunedPart(gettext("%(size)s of memory") % {"size": size})
    if not preview.estimate:
        return
    if preview.estimate.timing.seconds is None:
        yield TunedPart(gettext("no time estimate yet"))
    else:
        duration = formatting.duration(preview.estimate.timing.seconds)
        yield TunedPart(gettext("about %(duration)s") % {"duration": duration})


def _adapter_text(recipe: AnyRecipe) -> str:
    adapter = recipe.adapter
    if adapter.kind == "full":
        is_whole = adapter.trained.is_everything
        return gettext("all weights") if is_whole else gettext("a part of the weights")
    name = gettext("LoRA %(rank)s") % {"rank": adapter.r} if adapter.kind == "lora" else ""
    name = name or adapter.kind.upper()
    if not adapter.quantised:
        return name
    return gettext("%(adapter)s on %(format)s") % {
        "adapter": name,
        "format": translate(adapter.quantised.title),
    }


def _batch_text(recipe: AnyRecipe) -> str:
    if reward_of(recipe):
        return _answers_text(recipe)
    optimisation = recipe.optimisation
    size, steps = (
        optimisation.per_device_train_batch_size,
        optimisation.gradient_accumulation_steps,
    )
    accumulated = f" \N{MULTIPLICATION SIGN} {steps}" if steps > 1 else ""
    return gettext("batch %(size)s") % {"size": f"{size}{accumulated}"}


def _answers_text(recipe: AnyRecipe) -> str:
    """Return how many answers a step learns from: prompts, accumulation and answers to each."""
    optimisation = recipe.optimisation
    prompts, steps = (
        optimisation.per_device_train_batch_size,
        optimisation.gradient_accumulation_steps,
    )
    factors = [prompts, *([steps] if steps > 1 else []), recipe.answers_per_prompt]
    product = " \N{MULTIPLICATION SIGN} ".join(map(formatting.number, factors))
    return gettext("%(product)s = %(answers)s answers a step") % {
        "product": product,
        "answers": formatting.number(math.prod(factors)),
    }


def _length_text(recipe: AnyRecipe) -> str:
    steps, epochs = recipe.optimisation.max_steps, recipe.optimisation.num_train_epochs
    if steps:
        return ngettext("%(steps)s step", "%(steps)s steps", steps) % {
            "steps": formatting.number(steps)
        }
    # Fractions of an epoch take the plural.
    return ngettext("%(epochs)s epoch", "%(epochs)s epochs", 1 if epochs == 1 else 2) % {
        "epochs": formatting.number(epochs)
    }
