"""The dimensions of a model from its config, which is untrusted, so all values are bounded."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_MAX_WIDTH = 2**20
_MAX_LAYERS = 2**12
_MAX_VOCABULARY = 2**24

_GPT2_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
}
"""GPT-2's names of keys that other families name alike."""

_DROPOUT_KEYS = ("resid_pdrop", "residual_dropout", "hidden_dropout")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The dimensions that determine a decoder's activation memory per token."""

    layers: int
    hidden_size: int
    intermediate: int
    heads: int
    kv_heads: int
    """Key-value heads; fewer than `heads` if queries share them."""
    head_size: int
    vocab_size: int
    tied_embeddings: bool
    """Whether the output layer shares the input embedding."""
    activation: str = ""
    parallel_residual: bool = False
    """Whether attention and the MLP read the same input."""
    attn_softcapping: bool = False
    """Whether attention scores are softcapped."""
    logit_softcapping: bool = False
    """Whether logits are softcapped."""
    attention_dropout: bool = False
    residual_dropout: bool = False
    """Dropout on the outputs of attention and the MLP."""

    @property
    def query_width(self) -> int:
        return self.heads * self.head_size

    @property
    def key_width(self) -> int:
        return self.kv_heads * self.head_size


UNKNOWN_SHAPE = ModelShape(
    layers=0,
    hidden_size=0,
    intermediate=0,
    heads=0,
    kv_heads=0,
    head_size=0,
    vocab_size=0,
    tied_embeddings=False,
)
"""The shape of a model whose config does not give one."""


def read(config: Mapping[str, Any]) -> ModelShape | None:
    """Return the shape in a config, or None if a number is missing or out of bounds."""
    config = {new: config[old] for old, new in _GPT2_NAMES.items() if old in config} | dict(config)
    hidden = _bounded_int(config.get("hidden_size"), _MAX_WIDTH)
    heads = _bounded_int(config.get("num_attention_heads"), _MAX_WIDTH)
    if not hidden or not heads:
        return None
    inner = 4 * hidden if "n_embd" in config else 0
    shape = ModelShape(
        layers=_bounded_int(config.get("num_hidden_layers"), _MAX_LAYERS),
        hidden_size=hidden,
        intermediate=_bounded_int(_or_default(config.get("intermediate_size"), inner), _MAX_WIDTH),
        heads=heads,
        kv_heads=_bounded_int(_or_default(config.get("num_key_value_heads"), heads), heads),
        head_size=_bounded_int(_or_default(config.get("head_dim"), hidden // heads), _MAX_WIDTH),
        vocab_size=_bounded_int(config.get("vocab_size"), _MAX_VOCABULARY),
        tied_embeddings=config.get("tie_word_embeddings") is True,
        activation=str(config.get("activation_function") or config.get("hidden_act") or "")[:64],
        # GPT-NeoX does so by default, and only its config has this key.
        parallel_residual=config.get("use_parallel_residual") is True,
        attn_softcapping=bool(config.get("attn_logit_softcapping")),
        logit_softcapping=bool(config.get("final_logit_softcapping")),
        attention_dropout=bool(config.get("attention_dropout") or config.get("attn_pdrop")),
        residual_dropout=any(config.get(name) for name in _DROPOUT_KEYS),
    )
    numbers = (shape.layers, shape.intermediate, shape.kv_heads, shape.head_size, shape.vocab_size)
    return shape if all(numbers) else None


def _or_default(value: object, default: int) -> object:
    """Return the default for a value the config lacks."""
    return default if value is None else value


def _bounded_int(value: object, limit: int) -> int:
    """Return an integer from 1 to `most`, or 0 for anything else."""
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= limit
        else 0
    )
