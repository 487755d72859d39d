"""How the layers of a family are made, as far as its config does not say.

Seen in the families' own code in transformers 5.23, and counted by
`tests/training/memory/test_memory.py`. Names are those of `model_type` in a model's config.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayers:
    """A decoder's layers: attention, then an inner network, each beside a residual."""

    norm: Literal["root", "wide", "layer"] = "root"
    """By the root of the mean square, scaled once it is narrow again, or before; or torch's."""
    is_normed_before: bool = True
    is_normed_after: bool = False
    """Of what attention and the inner network put out."""
    normed_heads: Literal["", "each", "all"] = ""
    """Whether queries and keys are normed: each head by itself, or all as one."""
    is_joined: bool = False
    """Whether one product gives queries, keys and values."""
    is_gated: bool = True
    is_gate_joined: bool = False
    """Whether one product gives the gate and what it lets through."""
    is_copied: bool = False
    """Whether positions turn a part of each head, so that heads are put together anew."""
    is_eager: bool = False
    """Whether attention is written out: no fused kernel caps its scores."""

    @property
    def readers(self) -> tuple[int, int]:
        """How many linear layers read what goes into attention, and into the inner network."""
        inner = 2 if self.is_gated and not self.is_gate_joined else 1
        return (1 if self.is_joined else 3, inner)


_LLAMA = DecoderLayers()

FAMILY_LAYERS: Mapping[str, DecoderLayers] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": DecoderLayers(normed_heads="each"),
    "granite": _LLAMA,
    "smollm3": _LLAMA,
    "gemma": DecoderLayers(norm="wide"),
    "gemma2": DecoderLayers(norm="wide", is_normed_after=True, is_eager=True),
    "gemma3_text": DecoderLayers(norm="wide", is_normed_after=True, normed_heads="each"),
    "olmo2": DecoderLayers(
        norm="wide", is_normed_before=False, is_normed_after=True, normed_heads="all"
    ),
    "phi3": DecoderLayers(is_joined=True, is_gate_joined=True, is_copied=True),
    "gpt_neox": DecoderLayers(norm="layer", is_joined=True, is_gated=False, is_copied=True),
    "gpt2": DecoderLayers(norm="layer", is_joined=True, is_gated=False),
}
"""Families whose layers were counted."""
