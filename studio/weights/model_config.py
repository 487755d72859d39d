"""Limits for the numbers in a model's config, which is untrusted but believed by loaders.

A billion layers keep a loader busy until it is killed; a negative width fails deep inside. The
limits are about ten times those of the largest existing models.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from studio.errors import InvalidError

_MAX_LAYERS = 10_000
_MAX_WIDTH = 2**20
_MAX_VOCABULARY = 2**24

MAX_VALUES: dict[str, int] = {
    "num_hidden_layers": _MAX_LAYERS,
    "num_layers": _MAX_LAYERS,
    "n_layer": _MAX_LAYERS,
    "n_layers": _MAX_LAYERS,
    "encoder_layers": _MAX_LAYERS,
    "decoder_layers": _MAX_LAYERS,
    "num_attention_heads": _MAX_LAYERS,
    "num_key_value_heads": _MAX_LAYERS,
    "n_head": _MAX_LAYERS,
    "num_experts": _MAX_WIDTH,
    "num_local_experts": _MAX_WIDTH,
    "n_routed_experts": _MAX_WIDTH,
    "hidden_size": _MAX_WIDTH,
    "d_model": _MAX_WIDTH,
    "n_embd": _MAX_WIDTH,
    "head_dim": _MAX_WIDTH,
    "intermediate_size": _MAX_WIDTH,
    "moe_intermediate_size": _MAX_WIDTH,
    "n_inner": _MAX_WIDTH,
    "ffn_dim": _MAX_WIDTH,
    "d_ff": _MAX_WIDTH,
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
