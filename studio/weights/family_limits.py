"""What is known of model families that their files do not state, with sources.

Keys are the `model_type` in a model's config. The structure of decoder layers is taken from the
families' code in transformers 5.23, and verified by `tests/training/memory/test_memory.py`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

TRANSPOSED = frozenset({"gpt2", "openai-gpt"})
"""Families whose linear layers store their matrices transposed (`Conv1D` in transformers)."""


@dataclass(frozen=True, slots=True)
class Float16Overflow:
    """Why a family is unsafe in float16."""

    reason: str
    source: str
    is_certain: bool = True
    """Whether it happens at ordinary lengths and data: then float16 is refused, else there is a
    warning."""


_T5 = Float16Overflow(
    "its feed-forward layers reach 66,246, and float16 ends at 65,504",
    "huggingface/transformers#5651, #4586, #9295",
)
_GEMMA3 = Float16Overflow(
    "its activations reach about 800,000, and float16 ends at 65,504", "unslothai/unsloth#4014"
)
_QWEN2 = Float16Overflow(
    "it was trained in bfloat16, and overflows were reported on V100 cards",
    "QwenLM/Qwen3#868, #826",
    is_certain=False,
)
_EXPERTS = Float16Overflow("gradients became NaN in float16", "unslothai/unsloth#6865")

FLOAT16_OVERFLOWS: dict[str, Float16Overflow] = {
    "t5": _T5,
    "mt5": _T5,
    "umt5": _T5,
    "longt5": _T5,
    "gemma": Float16Overflow("its activations overflow float16", "google/gemma_pytorch#24"),
    "gemma2": Float16Overflow(
        "it was trained in bfloat16, like its predecessor, which overflows",
        "google/gemma_pytorch#24",
        is_certain=False,
    ),
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "gemma3n": Float16Overflow("its activations overflow float16", "unsloth_zoo FORCE_FLOAT32"),
    "gpt_oss": Float16Overflow("its activations overflow float16", "unsloth_zoo FORCE_FLOAT32"),
    "qwen3_5": Float16Overflow("its gated layers overflow float16", "unsloth_zoo FORCE_FLOAT32"),
    "qwen2": _QWEN2,
    "qwen2_vl": Float16Overflow(
        "it was trained in bfloat16 and overflows float16",
        "huggingface/transformers#33294, #33312",
    ),
    "phi": Float16Overflow("its attention overflows float16", "huggingface/transformers#28163"),
    "qwen3_moe": _EXPERTS,
    "glm4_moe": _EXPERTS,
    "gemma4": Float16Overflow(
        "its gradients overflowed in reinforcement learning; supervised runs were fine",
        "unslothai/unsloth-zoo#600, #866, unslothai/unsloth#4875",
        is_certain=False,
    ),
    "gpt_neo": Float16Overflow(
        "it overflowed on texts of 2,048 tokens",
        "huggingface/transformers#11076",
        is_certain=False,
    ),
    "gpt_neox": Float16Overflow(
        "overflows were reported", "huggingface/transformers#30199", is_certain=False
    ),
    "opt": Float16Overflow(
        "padding gave NaN in float16", "huggingface/transformers#17433", is_certain=False
    ),
}
"""Families that may overflow in float16."""

FLOAT32_PARAMETERS: dict[str, str] = {
    "mamba": "state-spaces/mamba#6",
    "mamba2": "state-spaces/mamba#6",
    "falcon_mamba": "state-spaces/mamba#6",
}
"""Families whose recurrence diverges with parameters in 16 bits, and the source."""

NO_ADAPTER_LAYERS: dict[str, tuple[str, ...]] = {
    "mamba": ("dt_proj", "out_proj", "x_proj"),
    "falcon_mamba": ("dt_proj", "out_proj", "x_proj"),
    "mamba2": ("out_proj",),
    "falcon_h1": ("out_proj",),
    "nemotron_h": ("out_proj",),
}
"""Layers whose weights a family's kernels read directly: an adapter there would never train.

peft refuses `out_proj`; the others are from the families' code in transformers.
"""

MIXED_16BIT_UNSAFE: dict[str, str] = {
    "rwkv": "BlinkDL/RWKV-LM#155",
    "hy_v4": "tested with torch 2.13",
    "inkling2_text": "tested with torch 2.13",
}
"""Families that cannot compute in one 16-bit format with weights in the other, even frozen ones."""


def warnings_for(family: str, *, has_experts: bool) -> Iterator[str]:
    """Yield a warning for each known limit of a family, with its source."""
    if overflow := FLOAT16_OVERFLOWS.get(family):
        verb = "does not train" if overflow.is_certain else "may fail"
        yield f"It {verb} in float16: {overflow.reason} ({overflow.source})."
    if source := FLOAT32_PARAMETERS.get(family):
        yield f"Its parameters should be kept in float32 ({source})."
    if source := MIXED_16BIT_UNSAFE.get(family):
        yield f"It cannot compute in one 16-bit format with weights in the other ({source})."
    if layers := NO_ADAPTER_LAYERS.get(family):
        yield f"Adapters skip {', '.join(layers)}: its kernels bypass those layers."
    if has_experts:
        yield "It is a mixture of experts: adapters do not cover the experts."


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """A family's layers: attention, then an MLP, each with a residual connection."""

    norm: Literal["root", "wide", "layer", "t5"] = "root"
    """"root": RMSNorm scaled after casting back to the narrow dtype; "wide": scaled before; "t5":
    scaled after it, from a widened copy of what it reads; "layer": torch's LayerNorm."""
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
    """Whether attention is eager: no fused kernel supports its softcapping, or upstream has none.
    """
    wide_softmax: bool = True
    """Whether eager attention computes its softmax in float32 even without autocast."""
    norm_first: bool = True
    """Whether norms read what layers add up, so that another one comes after the last layer."""
    narrow_embeddings: bool = False
    """Whether a linear layer widens the token embeddings, whatever their size."""
    dropout_everywhere: bool = False
    """Whether a single setting is the dropout of attention, the MLP and outputs."""

    attention_names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    """The linear layers of attention; all but the last read its input."""
    mlp_names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    """The linear layers of the MLP; all but the last read its input."""

    @property
    def readers(self) -> tuple[int, int]:
        """How many linear layers read the input of attention, and the input of the MLP."""
        return len(self.attention_names) - 1, len(self.mlp_names) - 1


WITHOUT_ROTARY = frozenset({"gpt2", "opt", "bloom", "gpt_bigcode", "mpt"})
"""Families whose positions are learned, or biases of attention, and cannot be stretched."""

_LLAMA = LayerSpec()

FAMILY_LAYERS: Mapping[str, LayerSpec] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": LayerSpec(qk_norm="each"),
    "granite": _LLAMA,
    "smollm3": _LLAMA,
    "gemma": LayerSpec(norm="wide"),
    "gemma2": LayerSpec(norm="wide", post_norm=True, eager_attention=True),
    "gemma3_text": LayerSpec(norm="wide", post_norm=True, qk_norm="each"),
    "olmo2": LayerSpec(norm="wide", pre_norm=False, post_norm=True, qk_norm="all"),
    "phi3": LayerSpec(
        fused_qkv=True,
        fused_gate_up=True,
        copies_rotated_heads=True,
        attention_names=("qkv_proj", "o_proj"),
        mlp_names=("gate_up_proj", "down_proj"),
    ),
    "gpt_neox": LayerSpec(
        norm="layer",
        fused_qkv=True,
        gated_mlp=False,
        copies_rotated_heads=True,
        attention_names=("query_key_value", "dense"),
        mlp_names=("dense_h_to_4h", "dense_4h_to_h"),
    ),
    "gpt2": LayerSpec(
        norm="layer",
        fused_qkv=True,
        gated_mlp=False,
        attention_names=("c_attn", "c_proj"),
        mlp_names=("c_fc", "c_proj"),
    ),
}
"""Families with verified layers."""
