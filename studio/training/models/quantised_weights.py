"""Frozen weights in 8 or 4 bits: how bitsandbytes is told to make them, and what is really there.

Whatever is measured here shows by itself: a quantised weight is stored in whole numbers, with its
scales beside it.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BitsAndBytesConfig

from studio.recipe.float_formats import DType
from studio.recipe.quantised import QUANTISED, Quantised


def bitsandbytes_config(row: Quantised, compute: DType) -> BitsAndBytesConfig:
    """Return how to load; 4-bit weights are widened to what the precision computes in."""
    if row is QUANTISED["int8"]:
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=row.name,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, compute),
    )


def disable_cpu_packing(model: nn.Module) -> None:
    """Keep quantised layers as they were loaded, and quiet.

    On processors with AVX-512 BF16 the first evaluation would pack NF4 weights for a kernel that
    has no gradient. Trained on, most adapters would learn nothing, and nothing would say so. Nor
    does it take layers whose outputs are no multiple of 32, or compute in any other format.
    """
    # It warns at every product that int8 is made of float16.
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
    modules: Iterable[Any] = model.modules()
    for module in modules:
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def is_quantised(weight: Tensor) -> bool:
    return not weight.is_floating_point()


def format_name(weight: Tensor) -> str:
    """Name the format that a layer's weight is stored in."""
    is_packed = weight.dtype == torch.uint8
    return getattr(weight, "quant_type", "uint8") if is_packed else str(weight.dtype)[6:]


def count_parameters(weight: Tensor) -> int:
    """Return how many numbers a weight stands for: two of NF4 share a byte."""
    state = getattr(weight, "quant_state", None)
    return weight.numel() if state is None else state.shape.numel()


def stored_bytes(model: nn.Module) -> int:
    """Return what a model's weights take, with their scales."""
    tensors = (one for module in model.modules() for one in _stored_tensors(module))
    return sum({one.data_ptr(): one.nbytes for one in tensors}.values())


def _stored_tensors(module: nn.Module) -> Iterator[Tensor]:
    for weight in module.parameters(recurse=False):
        yield weight.data
        for holder in (weight, getattr(module, "state", None)):
            yield from _scale_tensors(getattr(holder, "SCB", None))
        yield from _scale_tensors(getattr(weight, "quant_state", None))


def _scale_tensors(held: object) -> Iterator[Tensor]:
    """Return the tensors of a scale, which may have scales itself."""
    if isinstance(held, Tensor):
        yield held
    elif hasattr(held, "absmax"):
        for one in vars(held).values():
            yield from _scale_tensors(one)


def make_unit_layer(layer: Any, size: int, device: torch.device) -> Callable[[Tensor], Tensor]:  # noqa: ANN401 -- upstream is untyped
    """Return a layer like a quantised one, as it is while training, whose weights are all one."""
    kind = type(layer)
    if hasattr(layer, "compute_dtype"):
        told = {"compute_dtype": layer.compute_dtype, "quant_type": layer.weight.quant_type}
    else:
        told = {"has_fp16_weights": False, "threshold": layer.state.threshold}
    twin = kind(size, size, bias=False, **told)
    nn.init.ones_(twin.weight)
    twin.to(device)
    disable_cpu_packing(twin)
    product: Callable[[Tensor], Tensor] = twin.train()
    return product
