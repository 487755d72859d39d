"""How wide and how deep a model is, as its config says. A stranger wrote it: all is bounded."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_WIDEST = 2**20
_DEEPEST = 2**12
_MOST_WORDS = 2**24


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The numbers that say how much a decoder keeps of each token."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_heads: int
    """Heads of keys and values; fewer than `heads` where queries share them."""
    head_size: int
    vocabulary: int
    is_tied: bool
    """Whether the output is the table of the input."""

    @property
    def queries(self) -> int:
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        return self.key_heads * self.head_size


UNKNOWN = Shape(
    layers=0,
    hidden=0,
    intermediate=0,
    heads=0,
    key_heads=0,
    head_size=0,
    vocabulary=0,
    is_tied=False,
)
"""Of a model whose config does not say."""


def read(config: Mapping[str, Any]) -> Shape | None:
    """Return a config's shape, or None unless every number is there and within reason."""
    hidden = _whole(config.get("hidden_size"), _WIDEST)
    heads = _whole(config.get("num_attention_heads"), _WIDEST)
    if not hidden or not heads:
        return None
    shape = Shape(
        layers=_whole(config.get("num_hidden_layers"), _DEEPEST),
        hidden=hidden,
        intermediate=_whole(config.get("intermediate_size"), _WIDEST),
        heads=heads,
        key_heads=_whole(_or(config.get("num_key_value_heads"), heads), heads),
        head_size=_whole(_or(config.get("head_dim"), hidden // heads), _WIDEST),
        vocabulary=_whole(config.get("vocab_size"), _MOST_WORDS),
        is_tied=config.get("tie_word_embeddings") is True,
    )
    numbers = (shape.layers, shape.intermediate, shape.key_heads, shape.head_size, shape.vocabulary)
    return shape if all(numbers) else None


def _or(told: object, otherwise: int) -> object:
    """Return what a config leaves to be worked out."""
    return otherwise if told is None else told


def _whole(told: object, most: int) -> int:
    """Return a whole number from one to `most`, or nothing."""
    return told if isinstance(told, int) and not isinstance(told, bool) and 0 < told <= most else 0
