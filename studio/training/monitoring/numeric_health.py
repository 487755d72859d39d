"""Numeric health: measure how well activations, gradients and updates fit a number format.

    forward ──────────▶ backward ─────────▶ clip ─────────▶ step
    the largest value   norms and zeros     (too late: one  which weights
    of every module     before clipping     inf is all NaN) really changed

A check runs every tenth step at most. Its sums stay on the device until they are read, once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainerState

from studio.protocols.events import MagnitudeHistogram, Quantity
from studio.training.monitoring.magnitudes import MagnitudeSampler

HEALTH_CHECK_EVERY = 10
"""Steps between two checks: what changes faster shows in the loss itself."""

MAGNITUDE_CHECKS = 20
"""How often magnitudes are measured in a run, at most: always within a health check."""

_SAMPLED_WEIGHTS = 1024
"""Weights sampled in each tensor."""

_SAMPLED_TOKENS = 32
"""Tokens whose logits over the whole vocabulary are sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReading:
    """The result of a health check."""

    metrics: dict[str, float]
    module: str
    """The first module, in execution order, whose output was not finite; or ""."""
    tensor: str
    """The first weight whose gradient was not finite; or ""."""
    largest_float16: tuple[str, float]
    """The module with the largest float16 output, and that value; float16 overflows at 65,504."""
    magnitudes: dict[Quantity, MagnitudeHistogram]
    """Empty unless they were due."""


@dataclass(frozen=True, slots=True)
class _SampledWeight:
    """A trained weight, and the positions sampled in it."""

    name: str
    parameter: nn.Parameter
    positions: Tensor
    shares: Tensor
    """How many weights each sampled position represents."""
    zeros: Tensor
    """The same, or zero where a gradient of zero is no sign of underflow."""


@dataclass(frozen=True, slots=True)
class _BeforeStep:
    """Values captured between the backward pass and the step."""

    weights: list[_SampledWeight]
    values: Tensor
    gradients: Tensor
    norms: Tensor


class NumericHealth(TrainerCallback):  # type: ignore[misc] # upstream is untyped
    """Runs a health check when one is due, with hooks on the model only during that step."""

    SAVED_AS = "Health"
    STATE_ATTRIBUTES = ("_last_look", "_is_wanted", "_last_magnitudes")

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._weights: list[_SampledWeight] = []
        self._modules: list[tuple[str, nn.Module]] = []
        self._head: Any = None
        self._head_name = ""
        self._last_look = self._last_magnitudes = -math.inf
        self._magnitudes: MagnitudeSampler | None = None
        self._is_wanted = False
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._peaks: dict[str, Tensor] = {}
        self._float16_modules: set[str] = set()
        self._before: _BeforeStep | None = None
        self._reading: HealthReading | None = None

    def request_check(self) -> None:
        """Request a check at the next step, even if none is due."""
        self._is_wanted = True

    def take_reading(self) -> HealthReading | None:
        """Return the latest reading, once."""
        findings, self._reading = self._reading, None
        return findings

    def on_train_begin(
        self, _args: object, _state: object, _control: object, **_rest: object
    ) -> None:
        self._weights = _sample_trained(self._trainer.model)
        self._modules = _observed_modules(self._trainer.model)
        self._head = self._trainer.model.get_output_embeddings()
        self._head_name = next((name for name, module in self._modules if module is self._head), "")

    def on_step_begin(
        self, _args: object, state: TrainerState, _control: object, **_rest: object
    ) -> None:
        step = state.global_step + 1
        is_turn = step % state.logging_steps == 0 and step - self._last_look >= HEALTH_CHECK_EVERY
        if not (is_turn or self._is_wanted):
            return
        self._last_look, self._is_wanted = step, False
        self._magnitudes = None
        if step - self._last_magnitudes >= state.max_steps / MAGNITUDE_CHECKS:
            self._last_magnitudes, self._magnitudes = step, MagnitudeSampler()
        self._peaks.clear()
        self._float16_modules.clear()
        for name, module in self._modules:
            self._hooks.append(module.register_forward_hook(partial(self._record_output, name)))
        if self._head_name:
            backbone = self._trainer.model.get_decoder()
            self._hooks.append(backbone.register_forward_hook(self._run_head_on_sample))

    @torch.no_grad()
    def record_gradients(self) -> None:
        """Record the gradients before they are unscaled and clipped."""
        if not self._hooks:
            return
        while self._hooks:
            self._hooks.pop().remove()
        weights = [weight for weight in self._weights if weight.parameter.grad is not None]
        gradients = [grad for weight in weights if (grad := weight.parameter.grad) is not None]
        norms = torch._foreach_norm(gradients, 2, dtype=torch.float32)  # noqa: SLF001 -- clip_grad_norm_ uses it, too
        self._before = _BeforeStep(
            weights,
            _sampled_values(weights),
            torch.cat(
                [
                    grad.take(sampled.positions).float()
                    for sampled, grad in zip(weights, gradients, strict=True)
                ]
            ),
            torch.stack(norms),
        )

    @torch.no_grad()
    def on_optimizer_step(
        self, _args: object, _state: object, _control: object, **_rest: object
    ) -> None:
        if self._before is None:
            return
        new = _sampled_values(self._before.weights)
        sums, norms = _sum_parts(self._before, new), self._before.norms
        peaks = torch.stack(list(self._peaks.values()))
        numbers = torch.cat([sums, norms, peaks]).tolist()
        self._reading = self._build_reading(
            numbers[: len(sums)],
            numbers[len(sums) : -len(peaks)],
            numbers[-len(peaks) :],
            self._measure_magnitudes(self._before, new),
        )
        self._before = None

    def _measure_magnitudes(
        self, before: _BeforeStep, new: Tensor
    ) -> dict[Quantity, MagnitudeHistogram]:
        if self._magnitudes is None:
            return {}
        shares = torch.cat([weight.shares for weight in before.weights])
        zeros = torch.cat([weight.zeros for weight in before.weights])
        weighted = torch.where(before.gradients == 0, zeros, shares)
        old = before.values
        samples: dict[Quantity, tuple[Tensor, Tensor]] = {
            "weights": (new, shares),
            "gradients": (before.gradients, weighted),
        }
        if self._learning_rate() > 0:
            samples["updates"] = ((new - old) / old, shares * (old != 0))
        return self._magnitudes.measure(samples)

    def _record_output(
        self, name: str, _module: nn.Module, _inputs: object, output: object
    ) -> None:
        first = output[0] if isinstance(output, tuple) else output
        if not (isinstance(first, Tensor) and first.is_floating_point() and first.numel()):
            return
        if self._magnitudes is not None:
            self._magnitudes.add_output(name, first.detach())
        low, high = first.detach().aminmax()
        peak = torch.maximum(-low, high).float()
        # A module runs once per micro-batch. NaN takes precedence over any number.
        self._peaks[name] = torch.maximum(self._peaks.get(name, peak), peak)
        if first.dtype == torch.float16:
            self._float16_modules.add(name)

    @torch.no_grad()
    def _run_head_on_sample(
        self, _module: nn.Module, _inputs: object, output: Sequence[Tensor]
    ) -> None:
        """Run the head on some tokens: the fused loss bypasses it, so hooks see nothing."""
        states, kind = output[0].flatten(0, 1), output[0].device.type
        # A low-precision copy of the head's weight would have no gradient: do not cache it.
        casts = torch.autocast(kind, enabled=torch.is_autocast_enabled(kind), cache_enabled=False)
        with casts:
            # As in model families whose hidden states are wider than their weights.
            self._head(states[:: -(-len(states) // _SAMPLED_TOKENS)].to(self._head.weight.dtype))

    def _build_reading(
        self,
        sums: list[float],
        norms: list[float],
        peaks: list[float],
        magnitudes: dict[Quantity, MagnitudeHistogram],
    ) -> HealthReading:
        assert self._before is not None  # noqa: S101 -- its caller has just read it
        broken = [
            weight.name
            for weight, norm in zip(self._before.weights, norms, strict=True)
            if not math.isfinite(norm)
        ]
        outputs = dict(zip(self._peaks, peaks, strict=True))
        lost = [name for name, peak in outputs.items() if not math.isfinite(peak)]
        metrics: dict[str, float] = {
            "nonfinite_grads": len(broken),
            "activation_max": math.inf if lost else max(peaks),
        }
        if math.isfinite(scores := outputs.get(self._head_name, math.nan)):
            metrics["logit_max"] = scores
        # Shares are meaningless after a non-finite gradient or at a learning rate of zero.
        if not broken:
            metrics |= _metric_shares(sums, has_rate=self._learning_rate() > 0)
        float16_peaks = [(name, outputs[name]) for name in outputs if name in self._float16_modules]
        return HealthReading(
            metrics=metrics,
            module=lost[0] if lost else "",
            tensor=broken[0] if broken else "",
            largest_float16=max(float16_peaks, key=lambda one: one[1], default=("", 0.0)),
            magnitudes=magnitudes,
        )

    def _learning_rate(self) -> float:
        return max(float(group["lr"]) for group in self._trainer.optimizer.param_groups)


def _sum_parts(before: _BeforeStep, new: Tensor) -> Tensor:
    """Sum what a check has recorded. `_metric_shares` relies on the order."""
    old, alive = before.values, before.gradients != 0
    shares = torch.cat([weight.shares for weight in before.weights])
    zeros = torch.cat([weight.zeros for weight in before.weights])
    parts = (
        zeros * ~alive,
        zeros,
        shares * ((new == old) & alive),
        shares * alive,
        shares * (new - old).square(),
        shares * old.square(),
    )
    return torch.stack([part.sum() for part in parts])


def _sampled_values(weights: list[_SampledWeight]) -> Tensor:
    return torch.cat([weight.parameter.take(weight.positions) for weight in weights]).float()


def _metric_shares(sums: list[float], *, has_rate: bool) -> dict[str, float]:
    zeros, counted, lost, alive, moved, size = sums
    shares = {"grad_underflow_share": zeros / counted} if counted else {}
    if has_rate and alive and size:
        shares |= {"lost_update_share": lost / alive, "update_ratio": math.sqrt(moved / size)}
    return shares


def _sample_trained(model: PreTrainedModel) -> list[_SampledWeight]:
    generator = torch.Generator().manual_seed(0)
    vocabulary = _vocabulary_weights(model)
    return [
        _SampledWeight(
            _original_name(name),
            parameter,
            positions := _sample_positions(parameter, generator),
            shares := torch.ones_like(positions) * (parameter.numel() / len(positions)),
            shares * _zero_means_underflow(name, parameter, vocabulary),
        )
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]


def _original_name(name: str) -> str:
    """Return a part's name in the original model, without an adapter's prefix and suffix."""
    return name.removeprefix("base_model.model.").removesuffix(".base_layer")


def _zero_means_underflow(name: str, parameter: nn.Parameter, vocabulary: set[int]) -> bool:
    """Whether a gradient of zero means underflow."""
    # While lora_B is zero, as at the start, lora_A has no gradient.
    return parameter.dim() > 1 and id(parameter) not in vocabulary and ".lora_A." not in name


def _sample_positions(parameter: nn.Parameter, generator: torch.Generator) -> Tensor:
    count = min(_SAMPLED_WEIGHTS, parameter.numel())
    return torch.randint(parameter.numel(), (count,), generator=generator).to(parameter.device)


def _vocabulary_weights(model: PreTrainedModel) -> set[int]:
    """Return the weights with one row per token: absent tokens have a gradient of zero."""
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    output = model.get_output_embeddings()
    return {id(table.weight) for table in (*tables, *([output] if output is not None else []))}


def _observed_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the layers, and the modules inside them that hold weights themselves."""
    layers = {
        id(layer)
        for group in model.modules()
        if isinstance(group, nn.ModuleList)
        for layer in group
    }
    return [
        (_original_name(name), module)
        for name, module in model.named_modules()
        if id(module) in layers or (not [*module.children()] and [*module.parameters()])
    ]
