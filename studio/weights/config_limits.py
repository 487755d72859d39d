"""How large the numbers of a model's config may be. A stranger wrote it, and loaders believe it.

A billion layers keep a loader busy until it is killed; a negative width fails deep inside. The
limits are some ten times those of the largest models there are.
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
"""By the names that families use, at the top of a config or in one of its parts."""

POSITIVE_FIELDS = frozenset(
    {
        *("num_hidden_layers", "n_layer", "n_layers"),
        *("num_attention_heads", "num_key_value_heads", "n_head"),
        *("hidden_size", "d_model", "n_embd", "head_dim", "vocab_size"),
    }
)
"""Sizes that are divided by, or without which nothing is left of a model."""

MIN_VALUES = {"max_position_embeddings": -1, "n_positions": -1}
"""Families without a longest text say so with -1."""

MAX_PART_DEPTH = 4
"""How deep parts of parts are looked into: text_config is one deep."""

MAX_NESTING = 32
"""How deep anything may lie in anything."""

FAMILY_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
"""What a model_type may be. Programs have been known to make code of it."""


def check(config: Mapping[str, Any]) -> None:
    """Refuse a config whose numbers no model can have.

    Raises:
        InvalidError: one is no number, below zero, or absurdly large; or a family's name is none;
            or it is nested absurdly.

    """
    _refuse_deep(config)
    _refuse_unnamed(config, MAX_PART_DEPTH)
    for name, value in _sizes(config, MAX_PART_DEPTH):
        # Families with a number for each layer or each part list them: left to the loader.
        if isinstance(value, list | dict | None):
            continue
        smallest = 1 if name in POSITIVE_FIELDS else MIN_VALUES.get(name, 0)
        # Booleans are numbers to Python, and not here.
        if type(value) not in {int, float} or not smallest <= value <= MAX_VALUES[name]:
            said = f"config.json says {name} is {str(value)[:40]}"
            raise _config_error(f"{said}, which no model can have.")


def _sizes(config: Mapping[str, Any], depth: int) -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if name in MAX_VALUES:
            yield name, value
        elif isinstance(value, dict) and depth:
            yield from _sizes(value, depth - 1)


def _refuse_deep(config: Mapping[str, Any]) -> None:
    level: list[Any] = [config]
    for _ in range(MAX_NESTING):
        # Level by level, so that no depth is too deep for this to end.
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, Mapping) else one)
            if isinstance(inner, Mapping | list)
        ]
        if not level:
            return
    raise _config_error("config.json is nested absurdly.")


def _refuse_unnamed(config: Mapping[str, Any], depth: int) -> None:
    family = config.get("model_type") or "unnamed"
    if not isinstance(family, str) or not FAMILY_NAME.fullmatch(family):
        raise _config_error("config.json names a family as none is called (model_type).")
    for part in config.values():
        if isinstance(part, Mapping) and depth:
            _refuse_unnamed(part, depth - 1)


def _config_error(what: str) -> InvalidError:
    return InvalidError(
        what, hint="Fetch the model again, from a source you trust.", param="base_model"
    )
