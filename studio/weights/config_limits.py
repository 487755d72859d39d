"""How large the numbers of a model's config may be. A stranger wrote it, and loaders believe it.

A billion layers keep a loader busy until it is killed; a negative width fails deep inside. The
limits are some ten times those of the largest models there are.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from studio.errors import InvalidError

_LAYERS = 10_000
_WIDTH = 2**20
_TABLE = 2**24

LARGEST: dict[str, int] = {
    "num_hidden_layers": _LAYERS,
    "num_layers": _LAYERS,
    "n_layer": _LAYERS,
    "n_layers": _LAYERS,
    "encoder_layers": _LAYERS,
    "decoder_layers": _LAYERS,
    "num_attention_heads": _LAYERS,
    "num_key_value_heads": _LAYERS,
    "n_head": _LAYERS,
    "num_experts": _WIDTH,
    "num_local_experts": _WIDTH,
    "n_routed_experts": _WIDTH,
    "hidden_size": _WIDTH,
    "d_model": _WIDTH,
    "n_embd": _WIDTH,
    "head_dim": _WIDTH,
    "intermediate_size": _WIDTH,
    "moe_intermediate_size": _WIDTH,
    "n_inner": _WIDTH,
    "ffn_dim": _WIDTH,
    "d_ff": _WIDTH,
    "vocab_size": _TABLE,
    "max_position_embeddings": 2**30,
    "n_positions": 2**30,
}
"""By the names that families use, at the top of a config or in one of its parts."""

POSITIVE = frozenset(
    {
        *("num_hidden_layers", "n_layer", "n_layers"),
        *("num_attention_heads", "num_key_value_heads", "n_head"),
        *("hidden_size", "d_model", "n_embd", "head_dim", "vocab_size"),
    }
)
"""Sizes that are divided by, or without which nothing is left of a model."""

SMALLEST = {"max_position_embeddings": -1, "n_positions": -1}
"""Families without a longest text say so with -1."""

DEPTH = 4
"""How deep parts of parts are looked into: text_config is one deep."""

NESTED = 32
"""How deep anything may lie in anything."""

FAMILY = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
"""What a model_type may be. Programs have been known to make code of it."""


def check(config: Mapping[str, Any]) -> None:
    """Refuse a config whose numbers no model can have.

    Raises:
        InvalidError: one is no number, below zero, or absurdly large; or a family's name is none;
            or it is nested absurdly.

    """
    _refuse_deep(config)
    _refuse_unnamed(config, DEPTH)
    for name, value in _numbers(config, DEPTH):
        # Families with a number for each layer or each part list them: left to the loader.
        if isinstance(value, list | dict | None):
            continue
        smallest = 1 if name in POSITIVE else SMALLEST.get(name, 0)
        # Booleans are numbers to Python, and not here.
        if type(value) not in {int, float} or not smallest <= value <= LARGEST[name]:
            said = f"config.json says {name} is {str(value)[:40]}"
            raise _refused(f"{said}, which no model can have.")


def _numbers(config: Mapping[str, Any], depth: int) -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if name in LARGEST:
            yield name, value
        elif isinstance(value, dict) and depth:
            yield from _numbers(value, depth - 1)


def _refuse_deep(config: Mapping[str, Any]) -> None:
    level: list[Any] = [config]
    for _ in range(NESTED):
        # Level by level, so that no depth is too deep for this to end.
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, Mapping) else one)
            if isinstance(inner, Mapping | list)
        ]
        if not level:
            return
    raise _refused("config.json is nested absurdly.")


def _refuse_unnamed(config: Mapping[str, Any], depth: int) -> None:
    family = config.get("model_type") or "unnamed"
    if not isinstance(family, str) or not FAMILY.fullmatch(family):
        raise _refused("config.json names a family as none is called (model_type).")
    for part in config.values():
        if isinstance(part, Mapping) and depth:
            _refuse_unnamed(part, depth - 1)


def _refused(what: str) -> InvalidError:
    return InvalidError(
        what, hint="Fetch the model again, from a source you trust.", param="base_model"
    )
