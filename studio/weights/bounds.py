"""How large the numbers of a model's config may be. A stranger wrote it, and loaders believe it.

A billion layers keep a loader busy until it is killed; a negative width fails deep inside. The
limits are some ten times those of the largest models there are.
"""

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

DEPTH = 4
"""How deep parts of parts are looked into: text_config is one deep."""


def check(config: Mapping[str, Any]) -> None:
    """Refuse a config whose numbers no model can have.

    Raises:
        InvalidError: one is no number, below zero, or absurdly large.

    """
    for name, value in _numbers(config, DEPTH):
        # Families with a number for each layer or each part list them: left to the loader.
        if isinstance(value, list | dict | None):
            continue
        # Families without a longest text say so with -1.
        smallest = -1 if "position" in name else 0
        # Booleans are numbers to Python, and not here.
        if type(value) not in {int, float} or not smallest <= value <= LARGEST[name]:
            raise InvalidError(
                f"config.json says {name} is {str(value)[:40]}, which no model can have.",
                hint="Fetch the model again, from a source you trust.",
                param="base_model",
            )


def _numbers(config: Mapping[str, Any], depth: int) -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if name in LARGEST:
            yield name, value
        elif isinstance(value, dict) and depth:
            yield from _numbers(value, depth - 1)
