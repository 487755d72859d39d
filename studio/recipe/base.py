"""The recipe: everything a run needs to know, and nothing it can find out by itself.

A section whose fields go to one upstream config keeps that config's names, so that you can pass it
as `Config(**section.model_dump())` and no list of names exists twice.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from studio.recipe.fields import FieldSpec, Section
from studio.recipe.precision import AUTO, PRECISIONS, PrecisionChoice
from studio.recipe.sections import (
    Checkpoints,
    Data,
    EarlyStopping,
    Evaluation,
    FullFineTune,
    Lora,
    Numerics,
    Optimisation,
    Recovery,
    Samples,
)

VERSION: Literal[1] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    message: str
    hint: str
    param: str
    """The dotted name of the setting to change."""


class Recipe(Section):
    """The settings that every training method shares."""

    card_verb: ClassVar[str] = "fine-tuned"
    """What the model card says was done with the base model."""
    card_tags: ClassVar[tuple[str, ...]] = ()
    """Tags of the model card, besides the name of the method."""

    version: Literal[1] = VERSION

    base_model: Annotated[str, Field(min_length=1, max_length=1000), FieldSpec("Base model")]
    """One of your models, a folder on this machine, or a model on the Hugging Face hub."""

    dataset: Annotated[str, Field(min_length=1, max_length=200), FieldSpec("Dataset")]
    """The name of one of your datasets."""

    precision: Annotated[
        PrecisionChoice,
        FieldSpec(
            "Precision", related=("adapter.base_dtype",), choice_titles={AUTO: "Recommended"}
        ),
    ] = AUTO
    """The number format the model computes in; `auto` uses the recommendation for the model and the
    machine that trains it."""

    optimisation: Optimisation = Optimisation()
    adapter: Annotated[Lora | FullFineTune, Field(discriminator="kind")] = Lora()
    data: Data = Data()
    evaluation: Evaluation = Evaluation()
    early_stopping: EarlyStopping = EarlyStopping()
    checkpoints: Checkpoints = Checkpoints()
    samples: Samples = Samples()
    numerics: Numerics = Numerics()
    recovery: Recovery = Recovery()
    method: str

    def own_conflicts(self) -> Iterator[Conflict]:
        """Yield settings of the method that cannot be combined; none by default."""
        return iter(())

    @property
    def packages(self) -> frozenset[str]:
        """The optional packages that the recipe needs."""
        quantised = self.adapter.quantised
        mode = PRECISIONS.get(self.precision)
        needed = {mode.package if mode else "", quantised.package if quantised else ""}
        return frozenset(needed - {""})


Upgrade = Callable[[dict[str, Any]], dict[str, Any]]

UPGRADES: dict[int, Upgrade] = {}
"""Upgrade functions by the version they start from; each upgrades by one version."""


def upgrade(values: dict[str, Any]) -> dict[str, Any]:
    """Upgrade a stored recipe to the current version."""
    for version in range(int(values.get("version", VERSION)), VERSION):
        values = UPGRADES[version](values) | {"version": version + 1}
    return values
