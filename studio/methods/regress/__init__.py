"""Regression: the model learns one or more numbers for a text."""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from studio.intake.quality.answer_facts import number_problem
from studio.methods.base import Method, full_preset, lora_preset, quick_preset
from studio.methods.heads import SCORABLE, SCORABLE_FAMILIES, HeadRecipe, HeadSection
from studio.metrics import EVAL_LOSS, LOSS, MethodMetrics, MetricSpec
from studio.recipe.base import Outputs
from studio.recipe.fields import FieldSpec


class Numbers(HeadSection):
    """How the numbers are learned."""

    error: Annotated[
        Literal["mse", "mae", "huber"],
        FieldSpec(
            "Loss of the numbers",
            choice_titles={
                "mse": "Squared error",
                "mae": "Absolute error",
                "huber": "Huber: squared, absolute if large",
            },
        ),
    ] = "mse"
    """Squared error suits most numbers. Absolute error and Huber are pulled less by a few numbers
    that are far off. Standardised numbers are compared in standard deviations."""

    standardise: Annotated[bool, FieldSpec("Standardise the numbers", advanced=True)] = True
    """Learn how many standard deviations each number is from the mean of the training rows, so that
    all numbers count equally and the learning rate suits any unit. Predictions keep your units."""


class RegressRecipe(HeadRecipe):
    """Learn numbers: the model reads a text, and learns its numbers."""

    card_verb: ClassVar[str] = "trained to give numbers"
    card_tags: ClassVar[tuple[str, ...]] = ("regression",)
    outputs: ClassVar[Outputs] = "number"

    method: Literal["regress"] = "regress"
    numbers: Numbers = Numbers()

    @property
    def head(self) -> Numbers:
        return self.numbers


EVAL_R2 = MetricSpec(
    key="eval_r2",
    starts_at_zero=True,
    guess=0.0,
    title="Validation R²",
    source="eval",
    better="higher",
    is_objective=True,
    chart="Explained by the model",
    note="R² is 1 for perfect numbers, and 0 for always giving the mean.",
    is_always_drawn=True,
    tile="always",
)
"""The share of the variance that the model explains: 1 is perfect, 0 is as good as always giving
the mean, and less is worse than that. Of several numbers, the mean."""
BEST_EVAL_R2 = MetricSpec(
    key="best_eval_r2", title="Best validation R²", better="higher", chart="-"
)
EVAL_SPEARMAN = MetricSpec(
    key="eval_spearman",
    title="Validation rank correlation",
    source="eval",
    better="higher",
    is_objective=True,
    chart="Explained by the model",
    is_always_drawn=True,
)
"""Spearman's correlation: 1 if the model sorts the texts rightly. Of several numbers, the mean."""
_ERRORS = tuple(
    MetricSpec(
        key=key,
        title=title,
        source="eval",
        better="lower",
        is_objective=True,
        chart="Prediction error",
    )
    for key, title in (("eval_rmse", "Validation RMSE"), ("eval_mae", "Validation MAE"))
)
"""In the units of the data; reported if there is only one number."""

METHOD = Method(
    name="regress",
    title="Regression",
    purpose="Learn numbers",
    summary="Train a model that reads a text and gives it a number, or several.",
    recipe=RegressRecipe,
    metrics=MethodMetrics(
        (
            EVAL_R2,
            BEST_EVAL_R2,
            EVAL_SPEARMAN,
            *_ERRORS,
            *(replace(spec, unit="") for spec in (LOSS, EVAL_LOSS)),
        ),
        objective=EVAL_R2,
    ),
    trainable_kinds=SCORABLE,
    families=SCORABLE_FAMILIES,
    trains_on={
        "conversation": "The last answer of each conversation is its number, or several by name; "
        "what comes before is what the model reads."
    },
    answer_problem=number_problem,
    presets=(
        quick_preset(3e-4, epochs=20.0, validation_share=0.2, adapter={"kind": "full"}),
        lora_preset(),
        full_preset(2e-5),
    ),
)
