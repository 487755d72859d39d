"""The variants of LoRA: how an adapter starts, and what it trains. One row per variant."""

from dataclasses import dataclass
from typing import Literal

VariantName = Literal["plain", "dora", "pissa", "olora", "eva", "loftq"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraVariant:
    name: VariantName
    title: str
    trains_magnitudes: bool = False
    """Whether it also trains the norm of each row of a weight (upstream's `use_dora`)."""
    changes_base: bool = False
    """Whether the adapter starts as a part of the weights, which it takes out of the base model.

    Then the base model is not the model before training: that is the base with the adapter as it
    started. Saved as plain LoRA of twice the rank, it fits the original base model.
    """
    reads_data: bool = False
    """Whether the adapter starts with directions that it finds in the first training rows."""
    corrects_rounding: bool = False
    """Whether the adapter starts with what quantising the base model has rounded away."""

    @property
    def changes_start(self) -> bool:
        """Whether the model without its adapter is not the model before training."""
        return self.changes_base or self.corrects_rounding


_TABLE = (
    LoraVariant(
        name="plain",
        title="Plain LoRA",
    ),
    LoraVariant(
        name="dora",
        title="DoRA",
        trains_magnitudes=True,
    ),
    LoraVariant(
        name="pissa",
        title="PiSSA",
        changes_base=True,
    ),
    LoraVariant(
        name="olora",
        title="OLoRA",
        changes_base=True,
    ),
    LoraVariant(
        name="eva",
        title="EVA",
        reads_data=True,
    ),
    LoraVariant(
        name="loftq",
        title="LoftQ",
        corrects_rounding=True,
    ),
)
LORA_VARIANTS: dict[VariantName, LoraVariant] = {row.name: row for row in _TABLE}
