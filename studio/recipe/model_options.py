"""How a model computes, where that can be chosen independently of how it is trained."""

from typing import Annotated, Literal

from annotated_types import Ge
from pydantic import Field

from studio.recipe.attention import ATTENTIONS, AttentionName
from studio.recipe.fields import FieldSpec, Section
from studio.weights.adapter_targets import parse_names

RopeType = Literal["none", "linear", "dynamic", "yarn"]


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
            },
        ),
    ] = "none"
    """Stretch the rotary positions in a full fine-tune, so that the model reads texts longer than
    it was made for. YaRN disturbs short texts least; dynamic changes nothing until a text is
    longer; linear stretches all alike. Without long texts to train on, answers get worse."""

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
    of: each is read and written as one. Ordinary words gain little, and need many examples."""

    @property
    def new_token_texts(self) -> tuple[str, ...]:
        """The new tokens, each once."""
        return parse_names(self.new_tokens)
