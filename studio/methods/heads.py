"""What methods share whose model ends in an output layer for scores instead of tokens."""

from collections.abc import Iterator
from typing import Annotated

from annotated_types import Ge, Le

from studio.recipe.base import Conflict, Recipe
from studio.recipe.fields import FieldSpec, Section
from studio.recipe.sections import LearningRate, NoEvaluation, NoSamples, Optimisation
from studio.weights.architectures import SCORING, ModelKind
from studio.weights.encoders import ENCODERS

SCORABLE: frozenset[ModelKind] = frozenset({"causal", "encoder", "classifier"})
"""The kinds of models that learn what a text is."""
SCORABLE_FAMILIES = SCORING | frozenset(ENCODERS)
"""Their families."""


class HeadOptimisation(Optimisation):
    """How fast and how long the model trains."""

    learning_rate: LearningRate = 1e-4
    """Step size. Halve it if the loss jumps around; double it if the loss barely moves."""


class HeadSection(Section):
    """How the output layer is trained."""

    head_lr_ratio: Annotated[
        float,
        Ge(1),
        Le(1000),
        FieldSpec(
            "Learning rate of the output layer",
            advanced=True,
            related=("optimisation.learning_rate",),
        ),
    ] = 10.0
    """How many times the learning rate the new output layer uses: it starts from nothing, the rest
    of the model does not."""


class HeadRecipe(Recipe):
    """A recipe for a model that reads a text as a whole, and writes nothing."""

    optimisation: HeadOptimisation = HeadOptimisation()
    evaluation: NoEvaluation = NoEvaluation()
    samples: NoSamples = NoSamples()

    @property
    def head(self) -> HeadSection:
        """The section of the method's own settings."""
        raise NotImplementedError

    def own_conflicts(self) -> Iterator[Conflict]:
        if self.data.packing:
            yield Conflict(
                message="Rows that are read as a whole cannot be packed.",
                hint="Turn off sequence packing.",
                param="data.packing",
            )
