"""Muon for the matrices of a model's layers, and AdamW for everything else.

Muon replaces the averaged gradient G = U·S·Vᵀ of a matrix by about U·Vᵀ, so that an update is
equally large in every direction (https://kellerjordan.github.io/posts/muon/). Torch computes that
by five Newton-Schulz steps in bfloat16, whatever the format of the weights. An update is scaled by
0.2·√(longer side), to be about as large as AdamW's at the same learning rate
(https://arxiv.org/abs/2502.16982).
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from transformers import PreTrainedModel

from studio.recipe.optimizers import OPTIMIZERS
from studio.weights.trained_weights import ModelWeight

_MATRIX_DIMS = 2

_DEFAULTS: dict[str, Any] = {
    "lr": 1e-3,
    "weight_decay": 0.0,
    "momentum": 0.95,
    "nesterov": True,
    "ns_coefficients": (3.4445, -4.7750, 2.0315),
    "ns_steps": 5,
    "adjust_lr_fn": "match_rms_adamw",
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "is_matrix": False,
}


class MuonAdamW(torch.optim.Muon):
    """Muon for groups with `is_matrix`, AdamW for others; states have the weights' format."""

    title = OPTIMIZERS["muon"].title

    def __init__(self, params: Iterable[Any], **values: Any) -> None:  # noqa: ANN401 -- as upstream
        # Upstream's constructor refuses all weights but matrices.
        Optimizer.__init__(self, params, _DEFAULTS | values)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override] # upstream has overloads
        groups = self.param_groups
        self.param_groups = [group for group in groups if group["is_matrix"]]
        try:
            loss: float | None = super().step(closure)  # type: ignore[no-untyped-call] # upstream is untyped
        finally:
            self.param_groups = groups
        for group in groups:
            for weight in [] if group["is_matrix"] else group["params"]:
                if weight.grad is not None:
                    self._update(weight, weight.grad, group)
        return loss

    def _update(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Update a weight by AdamW."""
        state, (first, second) = self.state[weight], group["betas"]
        if not state:
            zeros = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
            state.update(step=0, **zeros)
        state["step"] += 1
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean.lerp_(gradient, 1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        scale = (square / (1 - second ** state["step"])).sqrt_().add_(group["eps"])
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.addcdiv_(mean, scale, value=-group["lr"] / (1 - first ** state["step"]))


def matrix_ids(model: PreTrainedModel) -> set[int]:
    """Return the ids of the matrices of the decoder layers, without tables and stacks."""
    return {
        id(weight)
        for name, weight in model.named_parameters()
        if weight.dim() == _MATRIX_DIMS and ModelWeight(name, 0).number is not None
    }
