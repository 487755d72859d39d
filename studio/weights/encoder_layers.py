"""How the layers of encoders and encoder-decoders are built, to work out their memory.

Taken from the families' code in transformers 5.23, and verified by
`tests/training/memory/test_memory_formula.py`. Families that are missing here get no closed
estimate: the attention of ConvBERT, Longformer and LongT5 reads in blocks, and that of DeBERTa v2
also compares positions.
"""

from collections.abc import Mapping
from dataclasses import replace

from studio.weights.family_limits import FAMILY_LAYERS, LayerSpec

_BERT = LayerSpec(
    norm="layer",
    gated_mlp=False,
    norm_first=False,
    wide_softmax=False,
    attention_names=("query", "key", "value", "dense"),
    mlp_names=("dense", "dense"),
)
_GATED = replace(
    _BERT,
    gated_mlp=True,
    attention_names=("q_proj", "k_proj", "v_proj", "o_proj"),
    mlp_names=("gate_proj", "up_proj", "down_proj"),
)

ENCODER_LAYERS: Mapping[str, LayerSpec] = {
    "albert": replace(_BERT, mlp_names=("ffn", "ffn_output"), narrow_embeddings=True),
    "bert": _BERT,
    "camembert": _BERT,
    "data2vec-text": _BERT,
    "distilbert": replace(
        _BERT,
        attention_names=("q_lin", "k_lin", "v_lin", "out_lin"),
        mlp_names=("lin1", "lin2"),
    ),
    "electra": _BERT,
    "ernie": _BERT,
    "eurobert": FAMILY_LAYERS["llama"],
    "gte": _GATED,
    "megatron-bert": replace(_BERT, norm_first=True, eager_attention=True),
    "modernbert": LayerSpec(
        norm="layer",
        fused_qkv=True,
        fused_gate_up=True,
        wide_softmax=False,
        attention_names=("Wqkv", "Wo"),
        mlp_names=("Wi", "Wo"),
    ),
    "mpnet": replace(_BERT, eager_attention=True, attention_names=("q", "k", "v", "o")),
    "nomic_bert": _GATED,
    "rembert": replace(_BERT, eager_attention=True, narrow_embeddings=True),
    "roberta": _BERT,
    "roberta-prelayernorm": replace(_BERT, norm_first=True),
    "roformer": replace(_BERT, eager_attention=True),
    "xlm-roberta": _BERT,
    "xlm-roberta-xl": replace(_BERT, norm_first=True),
}
"""Encoders with verified layers."""

UNVERIFIED_CHECKPOINTING = frozenset(
    {"distilbert", "megatron-bert", "modernbert", "rembert", "roformer"}
)
"""Encoders whose memory with activation checkpointing was measured to differ from the formula."""

FUNCTIONAL_DROPOUT = frozenset({"eurobert", "gte", "modernbert", "nomic_bert"})
"""Encoders whose attention computes its dropout itself, without a module for it."""

_BART = LayerSpec(
    norm="layer",
    gated_mlp=False,
    norm_first=False,
    wide_softmax=False,
    attention_names=("q_proj", "k_proj", "v_proj", "out_proj"),
    mlp_names=("fc1", "fc2"),
)
_T5 = LayerSpec(
    norm="t5",
    gated_mlp=False,
    wide_softmax=False,
    dropout_everywhere=True,
    attention_names=("q", "k", "v", "o"),
    mlp_names=("wi", "wo"),
)

PAIR_LAYERS: Mapping[str, LayerSpec] = {
    "bart": _BART,
    "marian": _BART,
    "mbart": replace(_BART, norm_first=True),
    "m2m_100": replace(_BART, norm_first=True),
    "mt5": _T5,
    "pegasus": replace(_BART, norm_first=True),
    "t5": _T5,
    "umt5": _T5,
}
"""Encoder-decoders with verified layers; those of the decoder also read what the encoder gives."""

GATED_T5 = ("wi_0", "wi_1", "wo")
"""The MLP's layers of a T5 whose config says so (`feed_forward_proj`)."""


def find(family: str) -> LayerSpec | None:
    """Return how a family's layers are built; None if that was not verified."""
    return FAMILY_LAYERS.get(family) or ENCODER_LAYERS.get(family) or PAIR_LAYERS.get(family)
