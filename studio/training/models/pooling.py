"""Vectors of texts: one for each, made of the states of its tokens, in float32 and of length 1."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from studio.recipe.vectors import Pooling


def embed(model: nn.Module, batch: Mapping[str, Any], pooling: Pooling) -> Tensor:
    """Return a vector of length 1 for each sequence: shape (sequences, width), float32.

    Sequences are padded on the right.
    """
    mask = batch["attention_mask"]
    states = model(
        input_ids=batch["input_ids"], attention_mask=mask, use_cache=False
    ).last_hidden_state
    with torch.autocast(states.device.type, enabled=False):
        return normalize(pool(states.float(), mask, pooling), dim=-1)


def pool(states: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """Return one vector for each sequence, given the states of its tokens.

    The states have the shape (sequences, tokens, width); the mask is 0 for padding.
    """
    match pooling:
        case "cls":
            return states[:, 0]
        case "last":
            rows = torch.arange(len(states), device=states.device)
            return states[rows, mask.sum(dim=1) - 1]
        case "mean":
            weights = mask[:, :, None].to(states)
            return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


def shorten(vectors: Tensor, size: int) -> Tensor:
    """Return the first numbers of vectors, as vectors of length 1."""
    return normalize(vectors[..., :size], dim=-1)
