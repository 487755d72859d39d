"""How much better an answer scored than the others: what a policy learns from.

Rewards have the shape (prompts, answers per prompt); NaN stands for an answer without a score,
which takes no part in any mean and gets an advantage of 0.
"""

from typing import Literal

import torch
from torch import Tensor

_EPSILON = 1e-4
"""Keeps a spread of almost 0 from blowing up advantages; TRL uses the same."""

Scale = Literal["group", "batch", "none"]


def group_advantages(rewards: Tensor, scale: Scale) -> Tensor:
    """Return each reward minus its group's mean, divided by a spread.

    GRPO, arXiv:2402.03300; without dividing, Dr. GRPO, arXiv:2503.20783.
    """
    advantages = rewards - rewards.nanmean(dim=1, keepdim=True)
    if scale == "group":
        advantages = advantages / (spread(rewards, dim=1) + _EPSILON)
    elif scale == "batch":
        advantages = advantages / (spread(rewards.flatten(), dim=0) + _EPSILON)
    return advantages.nan_to_num(0.0)


def leave_one_out_advantages(rewards: Tensor, *, normalise: bool) -> Tensor:
    """Return each reward minus the mean of the others in its group.

    RLOO, arXiv:2402.14740. An answer whose group has no other score gets an advantage of 0.
    """
    scored = (~rewards.isnan()).sum(dim=1, keepdim=True)
    others = (rewards.nansum(dim=1, keepdim=True) - rewards) / (scored - 1)
    advantages = torch.where(scored > 1, rewards - others, torch.nan)
    if normalise:
        centred = advantages - advantages.nanmean()
        advantages = centred / (spread(advantages.flatten(), dim=0) + _EPSILON)
    return advantages.nan_to_num(0.0)


def spread(rewards: Tensor, dim: int) -> Tensor:
    """Return the standard deviation of the scores, 0 for a single one; the dimension is kept."""
    count = (~rewards.isnan()).sum(dim=dim, keepdim=True)
    squares = (rewards - rewards.nanmean(dim=dim, keepdim=True)).square()
    return (squares.nansum(dim=dim, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
