"""AdamW for 16-bit weights, with ways to keep the updates that rounding would discard.

Next to 1, bfloat16 values are 2^-8 apart, so an update of 2e-5 changes nothing, however often it is
applied. Four ways to write back a weight `w` with its update `u`:

    nearest      w = round(w + u)                        the update is lost
    stochastic   w = round up or down at random          right on average
    kahan        w = round(w + u + c), c = what was cut  right in the end
    master       W = W + u in float32, w = round(W)      right at once, for 8 bytes more

All compute in float32 and keep their states in their own formats, also when saved and loaded.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from transformers import TrainingArguments

from studio.recipe.optimizers import OptimizerName
from studio.recipe.precision import Precision
from studio.training.precision.muon import MuonAdamW

_DISCARDED_BITS = 16
"""Bits that float32 has more than bfloat16; the upper halves are the same."""

_ADAM_DEFAULTS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}

_TITLES = {
    "nearest": "AdamW",
    "stochastic": "AdamW, stochastic rounding",
    "kahan": "AdamW, Kahan",
}

OptimizerChoice = tuple[type[torch.optim.Optimizer], dict[str, Any]]


def choose_optimizer(
    mode: Precision, args: TrainingArguments, name: OptimizerName
) -> OptimizerChoice | None:
    """Return the optimizer that a mode or recipe requires, or None if upstream has it."""
    betas = (args.adam_beta1, args.adam_beta2)
    adam = {"lr": args.learning_rate, "betas": betas, "eps": args.adam_epsilon}
    if mode.rounding is None:
        # Upstream's own Lion needs bitsandbytes, and a GPU.
        if name == "adamw_8bit":
            from studio.training.precision.adamw_8bit import AdamW8Bit  # noqa: PLC0415 -- heavy import

            return AdamW8Bit, adam
        ours = {"lion_32bit": (Lion, {"lr": args.learning_rate}), "muon": (MuonAdamW, adam)}
        return ours.get(name)
    if mode.master is not None:
        return MasterAdamW, adam
    return RoundedAdamW, {**adam, "rounding": mode.rounding, "seed": args.seed}


class _LowPrecisionAdamW(torch.optim.Optimizer):
    """Shared base: the loop over weights, and states that are loaded in their own formats."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override] # upstream has overloads
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        first = self.param_groups[0]
        first["calls"] = first.get("calls", 0) + 1
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.update(weight, weight.grad.float(), group)
        return loss

    def update(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load states in the formats they were saved in; upstream casts them to the weights'."""
        super().load_state_dict(state_dict)
        saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        weights = chain.from_iterable(group["params"] for group in self.param_groups)
        for number, weight in zip(saved, weights, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                if isinstance(value, Tensor):
                    self.state[weight][name] = value.detach().clone().to(weight.device)


class MasterAdamW(_LowPrecisionAdamW):
    """AdamW on a float32 copy of the weights; the model gets the rounded copy."""

    title = "AdamW with float32 master"

    def __init__(self, params: Iterable[Any], **adam: Any) -> None:  # noqa: ANN401 -- as upstream
        super().__init__(params, _ADAM_DEFAULTS | adam)

    def update(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            master = weight.detach().float().clone()
            zeros = {name: torch.zeros_like(master) for name in ("exp_avg", "exp_avg_sq")}
            state.update(step=0, master=master, **zeros)
        state["step"] += 1
        state["exp_avg"].lerp_(gradient, 1 - group["betas"][0])
        _update_square(state["exp_avg_sq"], gradient, group)
        change = _adam_update(state["exp_avg"], state["exp_avg_sq"], state["step"], group)
        state["master"].mul_(1 - group["lr"] * group["weight_decay"]).add_(change)
        weight.copy_(state["master"])


class RoundedAdamW(_LowPrecisionAdamW):
    """AdamW with weights and states in the model's 16-bit format, rounded with care."""

    def __init__(
        self,
        params: Iterable[Any],
        *,
        rounding: str = "nearest",
        seed: int = 0,
        **adam: Any,  # noqa: ANN401 -- as upstream
    ) -> None:
        super().__init__(params, {**_ADAM_DEFAULTS, **adam, "rounding": rounding, "seed": seed})
        self._generators: dict[torch.device, torch.Generator] = {}

    @property
    def title(self) -> str:
        return _TITLES[self.param_groups[0]["rounding"]]

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override] # upstream has overloads
        # Seeded by seed and step, so that a resumed run draws the same random numbers.
        self._generators = {}
        return super().step(closure)

    def update(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            names = ("exp_avg", "exp_avg_sq", *["lost"] * (group["rounding"] == "kahan"))
            state.update(step=0, **{name: torch.zeros_like(weight) for name in names})
        state["step"] += 1
        mean = state["exp_avg"].float().lerp_(gradient, 1 - group["betas"][0])
        square = _update_square(state["exp_avg_sq"].float(), gradient, group)
        float32_weight = weight.float()
        change = _adam_update(mean, square, state["step"], group)
        change.sub_(float32_weight, alpha=group["lr"] * group["weight_decay"])
        state["exp_avg"].copy_(mean)
        # This average moves by a thousandth per step: rounded to nearest, it could only ever grow.
        self._write(state["exp_avg_sq"], square, group)
        if group["rounding"] == "kahan":
            change.add_(state["lost"])
            written = (float32_weight + change).to(weight.dtype)
            state["lost"].copy_(change - (written.float() - float32_weight))
            weight.copy_(written)
        else:
            self._write(weight, float32_weight + change, group)

    def _write(self, target: Tensor, value: Tensor, group: dict[str, Any]) -> None:
        if group["rounding"] == "stochastic" and target.dtype == torch.bfloat16:
            value = round_stochastically(value, self._generator_for(target.device))
        target.copy_(value)

    def _generator_for(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            first = self.param_groups[0]
            seed = (first["seed"] * 1_000_003 + first["calls"]) % 2**32
            self._generators[device] = torch.Generator(device).manual_seed(seed)
        return self._generators[device]


class Lion(torch.optim.Optimizer):
    """Steps of equal size in every weight: only the sign of the averaged gradient counts."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override] # upstream has overloads
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, weight.grad, group)
        return loss

    def _update(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state["exp_avg"] = torch.zeros_like(weight)
        mean, (first, second) = state["exp_avg"], group["betas"]
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.add_(mean.lerp(gradient, 1 - first).sign_(), alpha=-group["lr"])
        mean.lerp_(gradient, 1 - second)


def round_stochastically(value: Tensor, generator: torch.Generator) -> Tensor:
    """Round float32 to bfloat16 up or down at random, with probabilities given by the distances."""
    noise = torch.randint(
        2**_DISCARDED_BITS, value.shape, dtype=torch.int32, device=value.device, generator=generator
    )
    bits = noise.add_(value.view(torch.int32)).bitwise_and_(-(2**_DISCARDED_BITS))
    # Some GPUs write NaN with all bits set: adding to that would overflow to zero.
    return torch.where(value.isfinite(), bits.view(torch.float32), value)


def _update_square(square: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
    decay = group["betas"][1]
    return square.mul_(decay).addcmul_(gradient, gradient, value=1 - decay)


def _adam_update(mean: Tensor, square: Tensor, step: int, group: dict[str, Any]) -> Tensor:
    """Return what Adam adds to the weights, without weight decay."""
    first, second = group["betas"]
    scale = (square / (1 - second**step)).sqrt_().add_(group["eps"])
    return torch.div(mean, scale, out=scale).mul_(-group["lr"] / (1 - first**step))
