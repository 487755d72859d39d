"""What is trained: a small adapter beside the frozen model, or every weight."""

from typing import Annotated, Literal

from annotated_types import Ge, Le, Lt

from studio.recipe.knobs import Knob, Section


class Lora(Section, title="LoRA adapter"):
    """Train a small adapter beside the frozen model.

    Names are those of `peft.LoraConfig`, but for `base_dtype`, which is about the model beside it.
    """

    kind: Literal["lora"] = "lora"

    r: Annotated[int, Ge(1), Le(1024), Knob("LoRA rank")] = 16
    """Size of the adapter. Higher learns more and costs more memory."""

    lora_alpha: Annotated[int, Ge(1), Le(4096), Knob("LoRA alpha", advanced=True)] = 32
    """Strength of the adapter; twice the rank is a fair start."""

    lora_dropout: Annotated[float, Ge(0), Lt(1), Knob("LoRA dropout", advanced=True)] = 0.0
    """Share of the adapter switched off at random in each step, against overfitting."""

    target_modules: Annotated[Literal["all-linear"], Knob("Target modules", advanced=True)] = (
        "all-linear"
    )
    """Which layers get an adapter: every linear layer but the output."""

    use_rslora: Annotated[bool, Knob("Rank-stabilised scaling", advanced=True)] = False
    """Scale by the root of the rank: worth trying from rank 64 on."""

    base_dtype: Annotated[
        Literal["native", "float32", "bfloat16", "float16"],
        Knob("Frozen model kept in", advanced=True),
    ] = "native"
    """Native keeps it as it was saved, where the precision allows; 16 bits halve its memory.

    The adapter itself is always trained in float32.
    """


class FullFineTune(Section, title="Full fine-tune"):
    """Train every weight. Learns most, needs most memory, and wants a lower learning rate."""

    kind: Literal["full"] = "full"
