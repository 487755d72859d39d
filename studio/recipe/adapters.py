"""What is trained: a small adapter beside the frozen model, or every weight."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le, Lt

from studio.recipe.fields import FieldSpec, Section
from studio.recipe.precision import Precision
from studio.recipe.quantised import QUANTISED, Quantised


class Lora(Section, title="LoRA adapter"):
    """Train a small adapter beside the frozen model.

    `base_dtype` is about the model beside it.
    """

    upstream: ClassVar[str] = "peft.LoraConfig"

    kind: Literal["lora"] = "lora"

    r: Annotated[int, Ge(1), Le(1024), FieldSpec("LoRA rank")] = 16
    """Size of the adapter. Higher learns more and costs more memory."""

    lora_alpha: Annotated[int, Ge(1), Le(4096), FieldSpec("LoRA alpha", advanced=True)] = 32
    """Strength of the adapter; twice the rank is a fair start."""

    lora_dropout: Annotated[float, Ge(0), Lt(1), FieldSpec("LoRA dropout", advanced=True)] = 0.0
    """Share of the adapter switched off at random in each step, against overfitting."""

    target_modules: Annotated[Literal["all-linear"], FieldSpec("Target modules", advanced=True)] = (
        "all-linear"
    )
    """Which layers get an adapter: every linear layer but the output."""

    use_rslora: Annotated[bool, FieldSpec("Rank-stabilised scaling", advanced=True)] = False
    """Scale by the root of the rank: worth trying from rank 64 on."""

    base_dtype: Annotated[
        Literal["native", "float32", "bfloat16", "float16", "int8", "nf4"],
        FieldSpec(
            "Frozen model kept in",
            is_studio_own=True,
            related=("precision",),
            titles={"native": "As it was saved"}
            | {name: row.title for name, row in QUANTISED.items()},
        ),
    ] = "native"
    """As it was saved keeps the format of each weight in the file; in float32 modes, which compute
    in the weights' own format, it is widened to float32. 8 or 4 bits take half or a quarter of the
    memory of 16 bits."""

    @property
    def quantised(self) -> Quantised | None:
        """What the frozen model is quantised to, if it is."""
        return QUANTISED.get(self.base_dtype)


class FullFineTune(Section, title="Full fine-tune"):
    """Train every weight. Learns most, needs most memory, and wants a lower learning rate."""

    kind: Literal["full"] = "full"

    @property
    def quantised(self) -> None:
        """Nothing: rounded weights cannot take small steps."""


def keeps_saved_dtypes(adapter: Lora | FullFineTune, mode: Precision) -> bool:
    """Whether each weight of the base model keeps the format it was saved in.

    Where nothing is cast on the fly, weights are in the format that is computed in.
    """
    is_native = isinstance(adapter, Lora) and adapter.base_dtype == "native"
    return is_native and mode.autocast is not None
