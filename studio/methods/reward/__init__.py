"""Reward models: the model learns to score answers, from pairs of which one is better."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le

from studio.methods import dpo
from studio.methods.base import Method, full_preset, lora_preset
from studio.metrics import EVAL_LOSS, LOSS, MethodMetrics, MetricSpec
from studio.recipe.base import Conflict, Outputs, Recipe
from studio.recipe.fields import FieldSpec, Section
from studio.recipe.sections import Epochs, LearningRate, NoSamples, Optimisation


class RewardOptimisation(Optimisation):
    """How fast and how long the model trains."""

    learning_rate: LearningRate = 1e-4
    """Step size. Halve it if the loss jumps around; double it if the loss barely moves."""

    num_train_epochs: Epochs = 1.0
    """Number of passes over the data. Reward models overfit early: more than two rarely help."""


class Scoring(Section):
    """How the scores are learned."""

    centring: Annotated[float, Ge(0), Le(1), FieldSpec("Centring", advanced=True)] = 0.01
    """How strongly the scores of each pair are pulled towards 0 on average. Only their difference
    matters to the loss, so without it they drift."""

    head_lr_ratio: Annotated[
        float,
        Ge(1),
        Le(1000),
        FieldSpec(
            "Learning rate of the score", advanced=True, related=("optimisation.learning_rate",)
        ),
    ] = 10.0
    """How many times the learning rate the new output layer uses: it starts from nothing, the rest
    of the model does not."""


class RewardRecipe(Recipe):
    """Score answers: the model reads pairs, and learns to score the better answer higher."""

    card_verb: ClassVar[str] = "trained to score answers"
    card_tags: ClassVar[tuple[str, ...]] = ("reward-model",)
    outputs: ClassVar[Outputs] = "score"

    method: Literal["reward"] = "reward"
    scoring: Scoring = Scoring()
    optimisation: RewardOptimisation = RewardOptimisation()
    samples: NoSamples = NoSamples()

    def own_conflicts(self) -> Iterator[Conflict]:
        if self.data.packing:
            yield Conflict(
                message="Answers that are compared cannot be packed.",
                hint="Turn off sequence packing.",
                param="data.packing",
            )


_SCORES = tuple(
    MetricSpec(key=key, title=title, unit="nats", source="eval", chart="Score of the answers")
    for key, title in (
        ("eval_chosen_score", "Better answers"),
        ("eval_rejected_score", "Worse answers"),
    )
)

METHOD = Method(
    name="reward",
    title="Reward model",
    purpose="Learn to score answers",
    summary="Train a model that gives each answer a score, from pairs of which one is better.",
    recipe=RewardRecipe,
    metrics=MethodMetrics(
        (
            dpo.EVAL_PREFERRED,
            dpo.PREFERRED,
            dpo.BEST_EVAL_PREFERRED,
            dpo.EVAL_MARGIN,
            dpo.MARGIN,
            *(replace(spec, unit="") for spec in (LOSS, EVAL_LOSS)),
            *_SCORES,
        ),
        objective=dpo.EVAL_PREFERRED,
    ),
    trains_on={"preference": "A reward model scores the better answer higher than the worse one."},
    ignores={
        "ranked": "Only the best and the worst answer of each row are compared. The answers "
        "between them are not used."
    },
    presets=(lora_preset(), full_preset(1e-5)),
    sequences_per_row=2,
)
