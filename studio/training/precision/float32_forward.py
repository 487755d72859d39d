"""Compute with a model in float32, whatever the precision it trains in: to measure its rounding."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from studio.recipe.precision import PRECISIONS
from studio.training.precision import matmul_precision

_EXACT = PRECISIONS["fp32"]
_HALVES = (torch.bfloat16, torch.float16)


@contextmanager
def float32_forward(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Compute in float32 inside the block: without autocast, with 16-bit weights widened.

    The weights of a layer are widened only while it computes, so that the model never needs twice
    its memory; embeddings and the output layer, throughout. Quantised weights stay as they are.
    """
    own: dict[Tensor, Tensor] = {}
    """The 16-bit weights that are float32 for now, with their own data."""

    def widen(layer: nn.Module, _inputs: object) -> None:
        _widen(_weights(layer), own)

    def narrow(layer: nn.Module, _inputs: object, _output: object) -> None:
        _narrow(_weights(layer), own)

    layers = _layers(model)
    inside = {weight for layer in layers for weight in _weights(layer)}
    hooks = [layer.register_forward_pre_hook(widen) for layer in layers]
    hooks += [layer.register_forward_hook(narrow, always_call=True) for layer in layers]
    try:
        _widen((weight for weight in _weights(model) if weight not in inside), own)
        with (
            _without_wrapper(model),
            torch.autocast(device.type, enabled=False),
            matmul_precision.apply_precision(_EXACT, device),
        ):
            yield
    finally:
        _narrow(list(own), own)
        for hook in hooks:
            hook.remove()


@contextmanager
def _without_wrapper(model: nn.Module) -> Iterator[None]:
    """Call what accelerate has wrapped: the wrapper turns autocast on."""
    attributes = vars(model)
    if "_original_forward" not in attributes:
        yield
        return
    wrapper = attributes["forward"]
    attributes["forward"] = attributes["_original_forward"]
    try:
        yield
    finally:
        attributes["forward"] = wrapper


def _layers(model: nn.Module) -> list[nn.Module]:
    """Return the outermost modules in lists: a layer may read the weights of its parts itself."""
    layers: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and module not in inside:
            layers += module
            inside.update(part for layer in module for part in layer.modules())
    return layers


def _weights(module: nn.Module) -> Iterator[Tensor]:
    return chain(module.parameters(), module.buffers())


def _widen(weights: Iterable[Tensor], own: dict[Tensor, Tensor]) -> None:
    for weight in weights:
        if weight.dtype in _HALVES:
            own[weight] = weight.data
            weight.data = weight.data.float()


def _narrow(weights: Iterable[Tensor], own: dict[Tensor, Tensor]) -> None:
    for weight in weights:
        if weight in own:
            weight.data = own.pop(weight)
