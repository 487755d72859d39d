"""What methods share whose loss compares the model with the one it started from."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from studio.metrics import REWARD_ROUNDING, MetricSpec
from studio.recipe.base import Conflict, Recipe
from studio.recipe.fields import FieldSpec
from studio.recipe.sections import Epochs, LearningRate, Optimisation

_PRECOMPUTES_FROM = 2
"""From this many epochs on, scoring all answers once takes less time than at every step."""

ReferenceScores = Annotated[
    Literal["automatic", "adapter_off", "precomputed"],
    FieldSpec(
        "Reference scores",
        advanced=True,
        choice_titles={
            "automatic": "Automatic",
            "adapter_off": "At every step, adapter off",
            "precomputed": "Once, before training",
        },
    ),
]


def rounding_metric(chart: str) -> MetricSpec:
    """Return the metric of what 16-bit formats do to rewards, drawn beside the rewards."""
    return MetricSpec(
        key=REWARD_ROUNDING,
        title="Rounding error of a reward",
        unit="nats",
        source="eval",
        better="lower",
        chart=chart,
    )


class PreferenceOptimisation(Optimisation):
    """How fast and how long the model trains."""

    learning_rate: LearningRate = 5e-6
    """Step size. Preference learning needs small steps: if good answers become much less likely,
    halve it."""

    num_train_epochs: Epochs = 1.0
    """Number of passes over the data. More than three rarely help."""


class ReferenceRecipe(Recipe):
    """A recipe whose loss compares the model with its reference: the model before training."""

    has_expected_answers: ClassVar[bool] = False
    reference_param: ClassVar[str]
    """The dotted name of the setting that decides when the reference scores answers."""

    optimisation: PreferenceOptimisation = PreferenceOptimisation()

    @property
    def reference_scores(self) -> str:
        """When the reference scores the answers: one of the choices of `ReferenceScores`."""
        raise NotImplementedError

    @property
    def has_reference(self) -> bool:
        return True

    @property
    def precomputes_reference(self) -> bool:
        """Whether the reference scores all answers before training."""
        if not self.has_reference:
            return False
        if self.adapter.changes_start:
            return True
        if self.reference_scores != "automatic":
            return self.reference_scores == "precomputed"
        epochs = self.optimisation.num_train_epochs
        return self.adapter.kind == "full" or epochs >= _PRECOMPUTES_FROM

    def own_conflicts(self) -> Iterator[Conflict]:
        if self.data.packing:
            yield Conflict(
                message="Answers that are compared cannot be packed.",
                hint="Turn off sequence packing.",
                param="data.packing",
            )
        if self.adapter.kind == "lora" and self.adapter.lora_dropout:
            yield Conflict(
                message="Dropout makes the model differ from its reference at random.",
                hint="Set LoRA dropout to 0.",
                param="adapter.lora_dropout",
            )
        variant = self.adapter.lora_variant
        if variant and variant.changes_start and self.reference_scores == "adapter_off":
            yield Conflict(
                message=f"{variant.title} starts with an adapter that is a part of the model, so "
                "the model without it is not the reference.",
                hint="Score the reference once, before training.",
                param=self.reference_param,
            )
        if self.adapter.continue_from and self.reference_scores == "adapter_off":
            yield Conflict(
                message=f"The reference is the model of {self.adapter.continue_from}, which is not "
                "the model without its adapter.",
                hint="Score the reference once, before training.",
                param=self.reference_param,
            )
        if self.adapter.kind == "full" and self.reference_scores == "adapter_off":
            yield Conflict(
                message="A full fine-tune has no adapter to turn off.",
                hint="Score the reference once, before training.",
                param=self.reference_param,
            )
