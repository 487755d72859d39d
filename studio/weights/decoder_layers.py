"""The structure of each family's decoder layers, as far as its config does not give it.

Taken from the families' code in transformers 5.23, and verified by
`tests/training/memory/test_memory.py`. Keys are the `model_type` in a model's config.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayers:
    """A decoder's layers: attention, then an MLP, each with a residual connection."""

    norm: Literal["root", "wide", "layer"] = "root"
    """"root": RMSNorm scaled after casting back to the narrow dtype; "wide": scaled before;
    "layer": torch's LayerNorm."""
    pre_norm: bool = True
    post_norm: bool = False
    """Norms the outputs of attention and the MLP."""
    qk_norm: Literal["", "each", "all"] = ""
    """Whether queries and keys are normed: each head separately, or all together."""
    fused_qkv: bool = False
    """Whether a single matmul gives queries, keys and values."""
    gated_mlp: bool = True
    fused_gate_up: bool = False
    """Whether a single matmul gives the gate and up projections."""
    copies_rotated_heads: bool = False
    """Whether rotary embeddings apply to part of each head, so that heads are joined again."""
    eager_attention: bool = False
    """Whether attention is eager: no fused kernel supports its softcapping."""

    @property
    def readers(self) -> tuple[int, int]:
        """How many linear layers read the input of attention, and the input of the MLP."""
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
"""Families with verified layers."""
