"""Frozen 8-bit and 4-bit weights: configure bitsandbytes, and measure the result.

Quantised weights are recognised by their storage: integers, with scales next to them.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BitsAndBytesConfig

from studio.recipe.precision import QUANTISED, DType, Quantised


def bitsandbytes_config(
    row: Quantised, compute: DType, head: Sequence[str] = ()
) -> BitsAndBytesConfig:
    """Return the loading config; 4-bit weights are dequantised to the format computed in.

    The modules of a head for scores are trained, so they are not quantised.
    """
    skipped = [*head] or None
    if row is QUANTISED["int8"]:
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=skipped)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        llm_int8_skip_modules=skipped,
        bnb_4bit_quant_type=row.name,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, compute),
    )


def disable_cpu_packing(model: nn.Module) -> None:
    """Keep quantised layers as they were loaded, and silence warnings.

    On CPUs with AVX-512 BF16, the first evaluation would repack NF4 weights for a kernel that has
    no gradient. If trained on, most adapters would learn nothing, without any error. The kernel
    also rejects layers whose output size is not a multiple of 32, and any other compute format.
    """
    # It warns about every int8 product computed from float16.
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
    modules: Iterable[Any] = model.modules()
    for module in modules:
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def is_quantised(weight: Tensor) -> bool:
    return not weight.is_floating_point()


def format_name(weight: Tensor) -> str:
    """Return the format that a layer's weight is stored in."""
    is_packed = weight.dtype == torch.uint8
    return getattr(weight, "quant_type", "uint8") if is_packed else str(weight.dtype)[6:]


def count_parameters(weight: Tensor) -> int:
    """Return how many parameters a weight represents: two NF4 values share a byte."""
    state = getattr(weight, "quant_state", None)
    return weight.numel() if state is None else state.shape.numel()


def stored_bytes(model: nn.Module) -> int:
    """Return the size of a model's weights in bytes, with their scales."""
    tensors = (tensor for module in model.modules() for tensor in _stored_tensors(module))
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())


def _stored_tensors(module: nn.Module) -> Iterator[Tensor]:
    for weight in module.parameters(recurse=False):
        yield weight.data
        for holder in (weight, getattr(module, "state", None)):
            yield from _scale_tensors(getattr(holder, "SCB", None))
        yield from _scale_tensors(getattr(weight, "quant_state", None))


def _scale_tensors(scale: object) -> Iterator[Tensor]:
    """Yield the tensors of a scale, which may have scales itself."""
    if isinstance(scale, Tensor):
        yield scale
    elif hasattr(scale, "absmax"):
        for value in vars(scale).values():
            yield from _scale_tensors(value)


def make_unit_layer(layer: Any, size: int, device: torch.device) -> Callable[[Tensor], Tensor]:  # noqa: ANN401 -- upstream is untyped
    """Return a layer like the given quantised one, in training mode, with all weights one."""
    kind = type(layer)
    if hasattr(layer, "compute_dtype"):
        options = {"compute_dtype": layer.compute_dtype, "quant_type": layer.weight.quant_type}
    else:
        options = {"has_fp16_weights": False, "threshold": layer.state.threshold}
    unit_layer = kind(size, size, bias=False, **options)
    nn.init.ones_(unit_layer.weight)
    unit_layer.to(device)
    disable_cpu_packing(unit_layer)
    product: Callable[[Tensor], Tensor] = unit_layer.train()
    return product
