"""Control, emulate and measure the precision in which matrix products read their operands."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from studio.recipe.precision import PRECISIONS, MatmulDType, Precision

_TORCH_PRECISION: dict[MatmulDType, str] = {
    "float32": "highest",
    "tf32": "high",
    "bfloat16": "medium",
}
"""Torch's settings for what float32 products may read. They permit a format, they do not force
it."""

PROBE_SIZE = 256
"""Large enough that libraries use their usual kernel."""


@contextmanager
def apply_precision(mode: Precision, device: torch.device) -> Iterator[bool]:
    """Set what float32 products read to the mode's format. Yield whether it is emulated."""
    operand_format: MatmulDType = mode.matmul if mode.compute == "float32" else "float32"
    with _torch_flags(operand_format):
        if operand_format != "bfloat16" or measure_operand(device) == operand_format:
            yield False
            return
        # Fused attention kernels multiply internally, where nothing can be rounded.
        rounding = _Bf16Operands()  # type: ignore[no-untyped-call] # upstream is untyped
        with sdpa_kernel(SDPBackend.MATH), rounding:
            yield True


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Read float32 factors as they are inside the block, and cast nothing, whatever is around it.

    So another model computes alike beside any that trains.
    """
    with (
        _disable_current_modes(),
        torch.autocast(device.type, enabled=False),
        apply_precision(PRECISIONS["fp32"], device),
    ):
        yield


def measure_operand(
    device: torch.device,
    inputs: torch.dtype = torch.float32,
    weights: torch.dtype = torch.float32,
) -> str:
    """Measure the format in which a plain product reads its operands."""
    ones = torch.ones(PROBE_SIZE, PROBE_SIZE, device=device, dtype=weights)
    return measure_format(lambda fine: torch.nn.functional.linear(fine, ones), device, inputs)


def measure_format(
    product: Callable[[Tensor], Tensor], device: torch.device, inputs: torch.dtype = torch.float32
) -> str:
    """Measure the format a product reads, using values that only wider formats can represent.

    `product` must multiply by a matrix of ones. Each result is a sum of `1 + e` and `-1`, so what
    remains is what was read of `e`.

    Integers with a scale miss even an `e` that bfloat16 can represent.

    8-bit floats are scaled first, so that `1 + e` becomes the largest representable value, or a
    power of two stays one. Either way e4m3 represents 9/128, which is more than half a step of its
    own and less than half a step of e5m2's, and neither represents 1/32.
    """

    def remainder(value: float) -> float:
        fine = torch.tensor([value, -1.0], device=device).repeat(PROBE_SIZE, PROBE_SIZE // 2)
        return product(fine.to(inputs))[0, 0].item()

    if remainder(1 + 2**-12) != 0:
        return "float32"
    if remainder(1 + 2**-5) == 0:
        return "float8_e4m3fn" if remainder(1 + 9 * 2**-7) != 0 else "float8_e5m2"
    if remainder(1 + 2**-9) == 0:
        return "bfloat16" if remainder(1 + 2**-7) == PROBE_SIZE // 2 * 2**-7 else "int8"
    return "tf32" if remainder(2.0**17) < float("inf") else "float16"


@contextmanager
def _torch_flags(operand_format: MatmulDType) -> Iterator[None]:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision(_TORCH_PRECISION[operand_format])
    # Convolutions have a separate flag, which is on by default.
    torch.backends.cudnn.allow_tf32 = operand_format != "float32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


_aten = torch.ops.aten
_FIRST_FACTOR = {
    _aten.mm: 0,
    _aten.bmm: 0,
    _aten.addmm: 1,
    _aten.addmm_: 1,
    _aten.baddbmm: 1,
    _aten.baddbmm_: 1,
}
"""Every product operator in torch, with the index of its first factor."""


class _Bf16Operands(TorchDispatchMode):  # type: ignore[no-untyped-call] # upstream is untyped
    """Rounds the factors of every product to bfloat16, in forward and backward passes."""

    def __torch_dispatch__(
        self,
        function: Callable[..., Any],
        _types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        first = _FIRST_FACTOR.get(function.overloadpacket)  # type: ignore[attr-defined] # an operator
        if first is not None:
            args = (*args[:first], *(_round_to_bf16(factor) for factor in args[first:]))
        return function(*args, **(kwargs or {}))


def _round_to_bf16(factor: Tensor) -> Tensor:
    return factor.bfloat16().float() if factor.dtype == torch.float32 else factor
