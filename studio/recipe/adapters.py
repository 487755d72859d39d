"""What is trained: a LoRA adapter next to the frozen model, or every weight."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le, Lt

from studio.recipe.fields import FieldSpec, Section
from studio.recipe.precision import Precision
from studio.recipe.quantised import QUANTISED, Quantised


class Lora(Section, title="LoRA adapter"):
    """Train a small adapter next to the frozen model.

    `base_dtype` applies to the frozen model.
    """

    upstream: ClassVar[str] = "peft.LoraConfig"

    kind: Literal["lora"] = "lora"

    r: Annotated[int, Ge(1), Le(1024), FieldSpec("LoRA rank")] = 16
    """Size of the adapter. A higher rank learns more and uses more memory."""

    lora_alpha: Annotated[int, Ge(1), Le(4096), FieldSpec("LoRA alpha", advanced=True)] = 32
    """Scales the adapter's effect; twice the rank is a good start."""

    lora_dropout: Annotated[float, Ge(0), Lt(1), FieldSpec("LoRA dropout", advanced=True)] = 0.0
    """Share of adapter inputs dropped at random in each step, to reduce overfitting."""

    target_modules: Annotated[Literal["all-linear"], FieldSpec("Target modules", advanced=True)] = (
        "all-linear"
    )
    """Which layers get an adapter: every linear layer except the output layer."""

    use_rslora: Annotated[bool, FieldSpec("Rank-stabilised scaling", advanced=True)] = False
    """Scale by the square root of the rank (rsLoRA): worth trying from rank 64."""

    base_dtype: Annotated[
        Literal["native", "float32", "bfloat16", "float16", "int8", "nf4"],
        FieldSpec(
            "Frozen model format",
            is_studio_own=True,
            related=("precision",),
            choice_titles={"native": "As saved"}
            | {name: row.title for name, row in QUANTISED.items()},
        ),
    ] = "native"
    """As saved keeps each weight in the format of its file. Modes that compute in float32 widen
    it to float32. 8 bits take half the memory of 16 bits; 4 bits take a quarter."""

    @property
    def quantised(self) -> Quantised | None:
        """The format that the frozen model is quantised to, or None."""
        return QUANTISED.get(self.base_dtype)


class FullFineTune(Section, title="Full fine-tune"):
    """Train every weight. Learns the most, needs the most memory and a lower learning rate."""

    kind: Literal["full"] = "full"

    @property
    def quantised(self) -> None:
        """Always None: quantised weights cannot be trained by small steps."""


def keeps_saved_dtypes(adapter: Lora | FullFineTune, mode: Precision) -> bool:
    """Whether each weight of the base model keeps the format it was saved in.

    Without autocast, weights are cast to the compute format.
    """
    is_native = isinstance(adapter, Lora) and adapter.base_dtype == "native"
    return is_native and mode.autocast is not None
