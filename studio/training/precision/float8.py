"""Linear layers with float8 products, by torchao, and verification of what each of them reads.

Tensors are scaled as a whole, torchao's default and fastest recipe (`Float8LinearRecipeName`):
inputs and weights are read as e4m3, gradients as e5m2, which has a wider range (arXiv 2209.05433).
Row-wise scaling is finer if a few values dominate, but reads gradients as e4m3; and without fast
accumulation torchao itself falls back to the other kernel (`addmm_float8_unwrapped`).

A layer keeps its float32 weight unchanged, so a plain model is saved.
"""

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from studio import hardware
from studio.errors import TrainingError
from studio.recipe.precision import Precision
from studio.training.models import heads
from studio.training.precision import matmul_precision
from studio.weights.model_facts import FLOAT8_MULTIPLE

_MAX_NAMED = 3


def convert_linear_layers(model: PreTrainedModel, mode: Precision) -> None:
    """Convert all linear layers except the output. Call it before an optimizer holds the weights.

    Raises:
        TrainingError: this machine or this model does not support float8.

    """
    if reason := mode.unsupported_reason(hardware.detect()):
        raise TrainingError(
            "precision_refused",
            f"{mode.title} cannot be used here: it {reason}.",
            hint="Choose another precision.",
        )
    from torchao.float8 import (  # noqa: PLC0415 -- optional dependency
        Float8LinearConfig,
        convert_to_float8_training,
    )

    layers = linear_layers(model)
    _refuse_unsupported(layers)
    # A weight's gradient sums over tokens; their number is padded to the required multiple.
    config = Float8LinearConfig(emulate=not torch.cuda.is_available(), pad_inner_dim=True)
    chosen = set(layers.values())
    convert_to_float8_training(
        model, config=config, module_filter_fn=lambda layer, _name: layer in chosen
    )


def linear_layers(model: PreTrainedModel) -> dict[str, nn.Linear]:
    """Return the linear layers by name, except the output layer, which feeds the loss."""
    output = heads.output_modules(model)
    modules = model.named_modules()
    return {
        name: module
        for name, module in modules
        if isinstance(module, nn.Linear) and module not in output
    }


def is_emulated(model: nn.Module) -> bool:
    """Whether float8 products are emulated in float32 because the hardware has none."""
    configs = (getattr(layer, "config", None) for layer in model.modules())
    return any(getattr(config, "emulate", False) for config in configs)


@contextmanager
def record_operands(model: PreTrainedModel, mode: Precision) -> Iterator["OperandReadings"]:
    """Yield a record of what each linear layer reads, filled in by the next forward pass.

    Empty for other modes: their layers read what all products read.
    """
    layers = linear_layers(model) if mode.is_float8 else {}
    readings = OperandReadings(mode, sum(isinstance(layer, nn.Linear) for layer in model.modules()))
    hooks = [
        layer.register_forward_hook(partial(readings.record, name))
        for name, layer in layers.items()
    ]
    try:
        yield readings
    finally:
        for hook in hooks:
            hook.remove()


class OperandReadings:
    """What linear layers read in the forward pass, and of gradients in the backward pass."""

    def __init__(self, mode: Precision, total: int) -> None:
        self._mode = mode
        self._total = total
        self._forward: dict[str, str] = {}
        self._backward: dict[str, str] = {}

    @property
    def matmul(self) -> str:
        """What layers read; gradients are only named if they alone differ from the plan."""
        planned = (self._mode.matmul, self._mode.matmul_of_gradients)
        kinds = set()
        for name, forward_format in self._forward.items():
            backward_format = self._backward[name]
            is_half_right = forward_format == planned[0] and backward_format != planned[1]
            kinds.add(
                f"{forward_format} ({backward_format} of gradients)"
                if is_half_right
                else forward_format
            )
        return " and ".join(sorted(kinds))

    @property
    def summary(self) -> dict[str, str]:
        """How many layers read which format, as text."""
        counted = Counter(self._forward.values()).items()
        counts = (f"{count} of {self._total} read {kind}" for kind, count in counted)
        gradients = " and ".join(sorted(set(self._backward.values())))
        texts = {"linear_layers": ", ".join(counts), "linear_gradients": gradients}
        return texts if self._forward else {}

    def record(
        self, name: str, layer: nn.Linear, inputs: tuple[Tensor, ...], _output: Tensor
    ) -> None:
        """Measure what a layer reads of inputs, weights and gradients, using probe weights."""
        device = inputs[0].device
        ones = torch.ones(matmul_precision.PROBE_SIZE, matmul_precision.PROBE_SIZE, device=device)
        forward_formats = {
            matmul_precision.measure_format(
                lambda fine: _run_with_weight(layer, fine, ones), device
            ),
            matmul_precision.measure_format(
                lambda fine: _run_with_weight(layer, ones, fine), device
            ),
        }
        self._forward[name] = " and ".join(sorted(forward_formats))
        self._backward[name] = matmul_precision.measure_format(
            lambda fine: _run_backward(layer, fine, ones), device
        )


def _run_with_weight(layer: nn.Linear, inputs: Tensor, weight: Tensor) -> Tensor:
    """Run the layer with another weight."""
    layer_copy = copy.copy(layer)
    layer_copy._parameters = {"weight": nn.Parameter(weight), "bias": None}  # noqa: SLF001 -- the layer keeps its own
    output: Tensor = layer_copy.forward(inputs)
    return output


def _run_backward(layer: nn.Linear, gradient: Tensor, weight: Tensor) -> Tensor:
    """Return the layer's backward result for a gradient, with another weight."""
    inputs = torch.zeros_like(gradient, requires_grad=True)
    with torch.enable_grad():
        output = _run_with_weight(layer, inputs, weight)
    with torch.autocast(gradient.device.type, enabled=False):
        return torch.autograd.grad(output, inputs, gradient.to(output.dtype))[0]


def _refuse_unsupported(layers: dict[str, nn.Linear]) -> None:
    if not layers:
        raise TrainingError(
            "precision_refused",
            "This model has no linear layer that supports 8-bit products.",
            hint="Choose bfloat16 mixed.",
        )
    unsupported = [
        name
        for name, layer in layers.items()
        if any(side % FLOAT8_MULTIPLE for side in layer.weight.shape)
    ]
    if unsupported:
        listed = ", ".join(unsupported[:_MAX_NAMED])
        if len(unsupported) > _MAX_NAMED:
            listed += f" and {len(unsupported) - _MAX_NAMED} more"
        raise TrainingError(
            "precision_refused",
            f"{listed}: 8-bit products need layers whose dimensions are "
            f"multiples of {FLOAT8_MULTIPLE}.",
            hint="Choose bfloat16 mixed.",
        )
