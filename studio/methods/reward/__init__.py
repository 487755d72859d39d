"""Reward models: the model learns to score answers, from pairs of which one is better."""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le

from studio.methods import dpo
from studio.methods.base import Method, full_preset, lora_preset, quick_preset
from studio.methods.heads import HeadOptimisation, HeadRecipe, HeadSection
from studio.metrics import EVAL_LOSS, LOSS, MethodMetrics, MetricSpec
from studio.recipe.base import Outputs
from studio.recipe.fields import FieldSpec
from studio.recipe.sections import Epochs
from studio.weights.architectures import SCORING


class RewardOptimisation(HeadOptimisation):
    """How fast and how long the model trains."""

    num_train_epochs: Epochs = 1.0
    """Number of passes over the data. Reward models overfit early: more than two rarely help."""


class Scoring(HeadSection):
    """How the scores are learned."""

    centring: Annotated[float, Ge(0), Le(1), FieldSpec("Centring", advanced=True)] = 0.01
    """How strongly the scores of each pair are pulled towards 0 on average. Only their difference
    matters to the loss, so without it they drift."""


class RewardRecipe(HeadRecipe):
    """Score answers: the model reads pairs, and learns to score the better answer higher."""

    card_verb: ClassVar[str] = "trained to score answers"
    card_tags: ClassVar[tuple[str, ...]] = ("reward-model",)
    outputs: ClassVar[Outputs] = "score"

    method: Literal["reward"] = "reward"
    scoring: Scoring = Scoring()
    optimisation: RewardOptimisation = RewardOptimisation()

    @property
    def head(self) -> Scoring:
        return self.scoring


_SCORES = tuple(
    MetricSpec(
        key=key,
        title=title,
        unit="nats",
        source="eval",
        chart="Score of the answers",
        note="Only the distance between the two counts: a score has no meaning by itself.",
    )
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
    families=SCORING,
    trains_on={"preference": "A reward model scores the better answer higher than the worse one."},
    ignores={
        "ranked": "Only the best and the worst answer of each row are compared. The answers "
        "between them are not used."
    },
    presets=(
        # A new output layer on a frozen body learns little in a minute.
        quick_preset(1e-3, adapter={"kind": "full"}, validation_share=0.2),
        lora_preset(),
        full_preset(1e-5),
    ),
    sequences_per_row=2,
)
