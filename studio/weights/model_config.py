"""The limits and dimensions in a model's config, which is untrusted but believed by loaders.

A billion layers keep a loader busy until it is killed; a negative width fails deep inside. The
limits are about ten times those of the largest existing models.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from studio.errors import InvalidError

_MAX_LAYERS = 10_000
_MAX_SHAPE_LAYERS = 2**12
_MAX_WIDTH = 2**20
_MAX_VOCABULARY = 2**24

_LAYER_KEYS = (
    *("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers"),
    *("num_attention_heads", "num_key_value_heads", "n_head"),
)
_WIDTH_KEYS = (
    *("num_experts", "num_local_experts", "n_routed_experts", "hidden_size", "d_model", "n_embd"),
    *("head_dim", "intermediate_size", "moe_intermediate_size", "n_inner", "ffn_dim", "d_ff"),
)
MAX_VALUES: dict[str, int] = {
    **dict.fromkeys(_LAYER_KEYS, _MAX_LAYERS),
    **dict.fromkeys(_WIDTH_KEYS, _MAX_WIDTH),
    "vocab_size": _MAX_VOCABULARY,
    "max_position_embeddings": 2**30,
    "n_positions": 2**30,
}
"""Maximum by config key, at the top of a config or in a nested part."""

POSITIVE_FIELDS = frozenset(
    {
        *("num_hidden_layers", "n_layer", "n_layers"),
        *("num_attention_heads", "num_key_value_heads", "n_head"),
        *("hidden_size", "d_model", "n_embd", "head_dim", "vocab_size"),
    }
)
"""Sizes that are divisors, or that no model can lack."""

MIN_VALUES = {"max_position_embeddings": -1, "n_positions": -1}
"""Families without a maximum length use -1."""

MAX_PART_DEPTH = 4
"""Levels of nested parts that are checked: text_config is level 1."""

MAX_NESTING = 32
"""Maximum nesting of the whole config."""

FAMILY_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
"""The permitted form of a model_type. Some programs turn it into code."""

_GPT2_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
}
"""GPT-2's names of keys that other families name alike."""
_DISTILBERT_NAMES = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
}
_T5_NAMES = {
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "d_kv": "head_dim",
    "num_heads": "num_attention_heads",
    "feed_forward_proj": "hidden_act",
}
_ENCODER_NAMES = {
    "encoder_layers": "num_hidden_layers",
    "encoder_attention_heads": "num_attention_heads",
    "encoder_ffn_dim": "intermediate_size",
}
_DECODER_NAMES = {key.replace("encoder", "decoder"): name for key, name in _ENCODER_NAMES.items()}
_OTHER_NAMES = {
    "gpt2": _GPT2_NAMES,
    "distilbert": _DISTILBERT_NAMES,
    **dict.fromkeys(("t5", "mt5", "umt5"), _T5_NAMES | {"num_layers": "num_hidden_layers"}),
    **dict.fromkeys(
        ("bart", "marian", "mbart", "m2m_100", "pegasus"),
        {"d_model": "hidden_size"} | _ENCODER_NAMES,
    ),
}
"""Names of keys that other families name alike, by family."""

_DROPOUT_KEYS = (
    *("resid_pdrop", "residual_dropout", "hidden_dropout"),
    *("hidden_dropout_prob", "dropout", "dropout_rate"),
)
_ATTENTION_DROPOUT_KEYS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")


def check(config: Mapping[str, Any]) -> None:
    """Refuse a config with impossible numbers.

    Raises:
        InvalidError: a value is not a number, negative or far too large; or the model_type is
            invalid; or the nesting is too deep.

    """
    _refuse_deep(config)
    _refuse_unnamed(config, MAX_PART_DEPTH)
    for name, value in _sizes(config, MAX_PART_DEPTH):
        # Some families list a number per layer or part: the loader checks those.
        if isinstance(value, list | dict | None):
            continue
        smallest = 1 if name in POSITIVE_FIELDS else MIN_VALUES.get(name, 0)
        # In Python, booleans are ints; here they are invalid.
        if type(value) not in {int, float} or not smallest <= value <= MAX_VALUES[name]:
            entry = f"config.json sets {name} to {str(value)[:40]}"
            raise _config_error(f"{entry}, which is not valid.")


def _sizes(config: Mapping[str, Any], depth: int) -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if name in MAX_VALUES:
            yield name, value
        elif isinstance(value, dict) and depth:
            yield from _sizes(value, depth - 1)


def _refuse_deep(config: Mapping[str, Any]) -> None:
    level: list[Any] = [config]
    for _ in range(MAX_NESTING):
        # Level by level and not recursive, so that deep nesting cannot overflow the stack.
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, Mapping) else value)
            if isinstance(inner, Mapping | list)
        ]
        if not level:
            return
    raise _config_error("config.json is nested too deeply.")


def _refuse_unnamed(config: Mapping[str, Any], depth: int) -> None:
    family = config.get("model_type") or "unnamed"
    if not isinstance(family, str) or not FAMILY_NAME.fullmatch(family):
        raise _config_error("config.json has an invalid model_type.")
    for part in config.values():
        if isinstance(part, Mapping) and depth:
            _refuse_unnamed(part, depth - 1)


def _config_error(what: str) -> InvalidError:
    return InvalidError(
        what, hint="Download the model again from a source you trust.", param="base_model"
    )


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
    activation_dropout: bool = False
    """Dropout inside the MLP."""
    embedding_width: int = 0
    """Width of the token embeddings; a linear layer widens those that are narrower."""

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
    """Return the shape in a config, or None if a number is missing or out of bounds.

    Of an encoder-decoder, this is its encoder's.
    """
    renamed = _OTHER_NAMES.get(str(config.get("model_type")), _GPT2_NAMES)
    config = dict(config) | {new: config[old] for old, new in renamed.items() if old in config}
    hidden = _bounded_int(config.get("hidden_size"), _MAX_WIDTH)
    heads = _bounded_int(config.get("num_attention_heads"), _MAX_WIDTH)
    if not hidden or not heads:
        return None
    inner = 4 * hidden if "n_embd" in config else 0
    shape = ModelShape(
        layers=_bounded_int(config.get("num_hidden_layers"), _MAX_SHAPE_LAYERS),
        hidden_size=hidden,
        intermediate=_bounded_int(_or_default(config.get("intermediate_size"), inner), _MAX_WIDTH),
        heads=heads,
        kv_heads=_bounded_int(_or_default(config.get("num_key_value_heads"), heads), heads),
        head_size=_bounded_int(_or_default(config.get("head_dim"), hidden // heads), _MAX_WIDTH),
        vocab_size=_bounded_int(config.get("vocab_size"), _MAX_VOCABULARY),
        tied_embeddings=config.get("tie_word_embeddings") is True,
        activation=_activation(config),
        # GPT-NeoX does so by default, and only its config has this key.
        parallel_residual=config.get("use_parallel_residual") is True,
        attn_softcapping=bool(config.get("attn_logit_softcapping")),
        logit_softcapping=bool(config.get("final_logit_softcapping")),
        attention_dropout=any(config.get(name) for name in _ATTENTION_DROPOUT_KEYS),
        residual_dropout=any(config.get(name) for name in _DROPOUT_KEYS),
        activation_dropout=bool(config.get("activation_dropout")),
        embedding_width=_bounded_int(config.get("embedding_size"), _MAX_WIDTH) or hidden,
    )
    numbers = (shape.layers, shape.intermediate, shape.kv_heads, shape.head_size, shape.vocab_size)
    return shape if all(numbers) else None


def read_decoder(config: Mapping[str, Any]) -> ModelShape | None:
    """Return the shape of an encoder-decoder's decoder; None if its config does not give one."""
    layers = config.get("num_decoder_layers") or config.get("num_layers")
    own = {old: config[new] for old, new in _SIDES.items() if new in config}
    return read(dict(config) | own | ({"num_layers": layers} if layers else {}))


_SIDES = dict(zip(_ENCODER_NAMES, _DECODER_NAMES, strict=True))
"""The decoder's keys by those of the encoder."""


def _activation(config: Mapping[str, Any]) -> str:
    names = ("activation_function", "hidden_act", "hidden_activation")
    return str(next((config[name] for name in names if config.get(name)), ""))[:64]


def _or_default(value: object, default: int) -> object:
    """Return the default for a value the config lacks."""
    return default if value is None else value


def _bounded_int(value: object, limit: int) -> int:
    """Return an integer from 1 to `limit`, or 0 for anything else."""
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= limit
        else 0
    )
