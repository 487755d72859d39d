"""How a model computes, where that can be chosen independently of how it is trained."""

from typing import Annotated

from studio.recipe.attention import ATTENTIONS, AttentionName
from studio.recipe.fields import FieldSpec, Section


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
