"""AdamW whose states take 8 bits per value, by bitsandbytes (https://arxiv.org/abs/2110.02861).

Blocks of 256 values share a scale. Weights with few values keep float32 states, as do embeddings,
whose gradients are too uneven: upstream's trainer leaves them out as well, but by settings of the
whole process.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from bitsandbytes.optim.adamw import AdamW8bit

from studio.recipe.optimizers import MIN_8BIT_SIZE, OPTIMIZERS

_NARROW = "qmap1"
"""Stands in the state of a weight whose averages are in 8 bits."""


class AdamW8Bit(AdamW8bit):
    """Keeps float32 states for groups with `is_table`, and for weights with few values."""

    title = OPTIMIZERS["adamw_8bit"].title

    def __init__(self, params: Iterable[Any], **adam: Any) -> None:  # noqa: ANN401 -- as upstream
        super().__init__(params, **adam, min_8bit_size=MIN_8BIT_SIZE)  # type: ignore[no-untyped-call] # upstream is untyped

    def get_config(self, gindex: int, pindex: int, group: dict[str, Any]) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config(gindex, pindex, group)  # type: ignore[no-untyped-call] # the same
        return config | ({"optim_bits": 32} if group.get("is_table") else {})

    def formats_in_8bit(self) -> Iterator[torch.dtype]:
        """Yield the formats of states that should be in 8 bits, or 8 bits if there are none."""
        yield torch.uint8
        for group in [] if not self.state else self.param_groups:
            for weight in group["params"]:
                is_wide = group.get("is_table") or weight.numel() < MIN_8BIT_SIZE
                if not is_wide and weight in self.state and _NARROW not in self.state[weight]:
                    yield self.state[weight]["state1"].dtype
