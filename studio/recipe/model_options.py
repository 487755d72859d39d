"""How a model computes, where that can be chosen independently of how it is trained."""

from typing import Annotated, Literal

from annotated_types import Ge
from pydantic import Field

from studio.recipe.attention import ATTENTIONS, AttentionName
from studio.recipe.fields import FieldSpec, Section
from studio.weights.adapter_targets import parse_names

RopeType = Literal["none", "linear", "dynamic", "yarn", "llama3"]


class ModelOptions(Section, title="Model"):
    """How the base model computes."""

    attention: Annotated[
        AttentionName,
        FieldSpec(
            "Attention",
            advanced=True,
            related=("precision", "data.packing"),
            choice_titles={name: row.title for name, row in ATTENTIONS.items()},
        ),
    ] = "automatic"
    """Automatic takes SDPA where the model supports it. Eager keeps every score: slower, with
    memory that grows with the square of the length, but nothing is hidden in a kernel.
    FlashAttention saves time and memory with long, packed sequences on a GPU."""

    rope_type: Annotated[
        RopeType,
        FieldSpec(
            "Longer context",
            advanced=True,
            related=("data.max_length",),
            choice_titles={
                "none": "As it was made",
                "linear": "Linear",
                "dynamic": "Dynamic NTK",
                "yarn": "YaRN",
                "llama3": "Llama 3",
            },
        ),
    ] = "none"
    """Stretch the rotary positions, so that the model reads texts longer than it was made for. YaRN
    disturbs short texts least; dynamic changes nothing until a text is longer; linear stretches all
    alike; Llama 3 stretches only far positions, as Llama 3.1 does. Without long texts to train on,
    answers get worse. An adapter then fits only a base model that is stretched in the same way."""

    rope_factor: Annotated[
        float, Ge(1), FieldSpec("Context factor", advanced=True, usable_range=(1.0, 64.0))
    ] = 2.0
    """How many times longer the context becomes, if it is stretched."""

    new_tokens: Annotated[
        str | None,
        Field(max_length=1000, pattern=r"^\s*[^\s,]+\s*(,\s*[^\s,]+\s*)*$"),
        FieldSpec("New tokens", advanced=True),
    ] = None
    """Words that become single tokens, such as `<tool>, </tool>`. For markup that the data is full
    of: each is read and written as one. Ordinary words gain little, and need many examples. Next to
    LoRA, only the new rows of the embeddings are trained, unless the embeddings are, too."""

    @property
    def positions(self) -> str:
        """How the positions are stretched, in words."""
        return (
            self.rope_type if self.rope_type == "none" else f"{self.rope_type} {self.rope_factor:g}"
        )

    @property
    def new_token_texts(self) -> tuple[str, ...]:
        """The new tokens, each once."""
        return parse_names(self.new_tokens)
