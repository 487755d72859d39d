"""What the studio knows about a training method without loading torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from studio.intake.mapping import RowKind, ShapeName
from studio.intake.quality.answer_facts import AnswerFacts
from studio.metrics import MethodMetrics, MetricSpec
from studio.recipe.base import Recipe
from studio.weights.architectures import ModelKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A starting point: values merged over the recipe's defaults."""

    name: str
    title: str
    summary: str
    values: Mapping[str, Any] = field(default_factory=dict)
    is_study: bool = False
    """Whether the recipe runs in several precisions, which the user selects next."""
    is_for_starter: bool = False
    """Whether its learning rate suits the starter model only: it is far too high for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    name: str
    title: str
    """Its name in the field."""
    purpose: str
    """What it is for, in a few words: `Learn from answers`."""
    summary: str
    recipe: type[Recipe]
    presets: tuple[Preset, ...]
    """A new form opens with the first one."""
    metrics: MethodMetrics
    trainable_kinds: frozenset[ModelKind] = frozenset({"causal"})
    """The model kinds this method can train; others are refused when they are selected."""
    families: frozenset[str] = frozenset()
    """The families it can train, by `model_type`; empty for all of these kinds."""
    trains_on: Mapping[RowKind, str]
    """What it trains on in rows of each kind it can read; other kinds are refused."""
    ignores: Mapping[ShapeName, str] = field(default_factory=dict)
    """What it does not use in rows of some shapes, and what that means."""
    answer_problem: Callable[[AnswerFacts], str] = lambda _facts: ""
    """Returns why it cannot learn the answers of a conversation dataset, or "" if it can."""
    keeps_answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings that keep a model from losing good answers, if the method has any."""

    sequences_per_row: int = 1
    """How many sequences the model reads for one row."""

    examples_per_row: Mapping[str, int] = field(default_factory=dict)
    """How many examples a row of some kinds becomes; one, if its kind is not here."""

    openai_type: str = ""
    """Its name in OpenAI's fine-tuning API; empty if that has no such method."""
    openai_hyperparameters: Mapping[str, str] = field(default_factory=dict)
    """What OpenAI calls its own settings, and the dotted names of these in the recipe."""

    @property
    def reads_bad_answers(self) -> bool:
        """Whether it learns from the worse answers of pairs, or from answers that are rated bad."""
        return self.sequences_per_row > 1 or self.recipe.reads_bad_answers

    @property
    def objective(self) -> MetricSpec:
        """The metric that picks the best weights, ends runs early and guides sweeps."""
        return self.metrics.objective


def lora_preset(**values: Any) -> Preset:  # noqa: ANN401 -- settings of a recipe
    """Return the preset of an adapter; `values` are merged over the method's defaults."""
    return Preset(
        name="lora",
        title="Balanced LoRA",
        summary="A small adapter on any model: the best default for one GPU.",
        values={"base_model": "starter", **values},
    )


def without_base(preset: Preset) -> Preset:
    """Return a preset without the starter model, which is causal and reads text alone."""
    values = {name: value for name, value in preset.values.items() if name != "base_model"}
    return replace(preset, values=values)


def quick_preset(
    learning_rate: float,
    *,
    epochs: float = 3.0,
    validation_share: float = 0.05,
    **values: Any,  # noqa: ANN401 -- settings of a recipe
) -> Preset:
    """Return the preset that shows in about a minute what a method does, on the starter model."""
    return Preset(
        name="quick",
        title="Quick start",
        summary="The starter model, as many steps as fit into a minute.",
        is_for_starter=True,
        values={
            "base_model": "starter",
            **values,
            "optimisation": {
                "num_train_epochs": epochs,
                "max_minutes": 1.0,
                "per_device_train_batch_size": 16,
                "learning_rate": learning_rate,
            },
            "data": {"max_length": 256, "validation_share": validation_share},
            "evaluation": {"eval_steps": 0.25, "per_device_eval_batch_size": 64},
        },
    )


def full_preset(learning_rate: float, **values: Any) -> Preset:  # noqa: ANN401 -- settings of a recipe
    """Return the preset of a full fine-tune, which needs smaller steps than an adapter."""
    return Preset(
        name="full",
        title="Full fine-tune",
        summary="Trains every weight: learns the most, needs the most memory.",
        values={
            "base_model": "starter",
            **values,
            "optimisation": {"learning_rate": learning_rate},
            "adapter": {"kind": "full"},
        },
    )
