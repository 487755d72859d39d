"""How a model gives vectors of texts: what a recipe says of it, and what saved models do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Pooling = Literal["mean", "cls", "last"]
"""Which tokens the vector of a text is made of: all, the first or the last."""

MODULE_NAMES: Mapping[Pooling, str] = {
    "mean": "mean_tokens",
    "cls": "cls_token",
    "last": "lasttoken",
}
"""The names of these in sentence-transformers, behind `pooling_mode_`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vectors:
    """What a model of a recipe needs besides its weights to give vectors."""

    pooling: Pooling
    query_prompt: str = ""
    """What is written before a query."""
    passage_prompt: str = ""
    """What is written before any other text."""
    shorter_sizes: tuple[int, ...] = ()
    """Lengths at which the start of a vector is a good vector, too."""
