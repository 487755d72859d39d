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
    pre_norm: bool = True
    post_norm: bool = False
    """Of what attention and the inner network put out."""
    qk_norm: Literal["", "each", "all"] = ""
    """Whether queries and keys are normed: each head by itself, or all as one."""
    fused_qkv: bool = False
    """Whether one product gives queries, keys and values."""
    gated_mlp: bool = True
    fused_gate_up: bool = False
    """Whether one product gives the gate and what it lets through."""
    copies_rotated_heads: bool = False
    """Whether positions turn a part of each head, so that heads are put together anew."""
    eager_attention: bool = False
    """Whether attention is written out: no fused kernel caps its scores."""

    @property
    def readers(self) -> tuple[int, int]:
        """How many linear layers read what goes into attention, and into the inner network."""
        inner = 2 if self.gated_mlp and not self.fused_gate_up else 1
        return (1 if self.fused_qkv else 3, inner)


_LLAMA = DecoderLayers()

FAMILY_LAYERS: Mapping[str, DecoderLayers] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": DecoderLayers(qk_norm="each"),
    "granite": _LLAMA,
    "smollm3": _LLAMA,
    "gemma": DecoderLayers(norm="wide"),
    "gemma2": DecoderLayers(norm="wide", post_norm=True, eager_attention=True),
    "gemma3_text": DecoderLayers(norm="wide", post_norm=True, qk_norm="each"),
    "olmo2": DecoderLayers(norm="wide", pre_norm=False, post_norm=True, qk_norm="all"),
    "phi3": DecoderLayers(fused_qkv=True, fused_gate_up=True, copies_rotated_heads=True),
    "gpt_neox": DecoderLayers(
        norm="layer", fused_qkv=True, gated_mlp=False, copies_rotated_heads=True
    ),
    "gpt2": DecoderLayers(norm="layer", fused_qkv=True, gated_mlp=False),
}
"""Families whose layers were counted."""
