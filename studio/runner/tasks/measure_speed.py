"""Measure how fast this machine multiplies matrices in each number format."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.utils.benchmark import Timer

from studio.hardware import detect
from studio.protocols.tasks import TaskDir
from studio.recipe.precision import DType
from studio.runner.execution import ReportProgress


def probe(_folder: TaskDir, _params: dict[str, Any], report: ReportProgress) -> dict[str, Any]:
    """Return the seconds that one layer's matrix products take, by format."""
    report("timing each number format", None)
    return {"seconds": measure_formats(detect().device)}


MEASURE_SECONDS = 1.0
"""For all formats together; a slow format takes at least two of its products."""
_MATRIX_WIDTHS = {"cpu": 512, "cuda": 4096}
"""Wide enough to keep the device busy and to avoid special cases of its library."""
_FORMATS: tuple[DType, ...] = ("float32", "bfloat16", "float16")


def measure_formats(device: str, seconds: float = MEASURE_SECONDS) -> dict[DType, float]:
    """Return the minimum time, in seconds, of a linear layer's three products in a step.

    They are the forward pass and the gradients of input and weights: an emulated format may be fast
    in one and slow in another. The minimum is used because other load on the machine only adds
    time.
    """
    return {name: _measure_format(device, name, seconds / len(_FORMATS)) for name in _FORMATS}


def _measure_format(device: str, name: DType, seconds: float) -> float:
    width = _MATRIX_WIDTHS[device]
    inputs, weight, gradient = (_random_matrix(width, device, name) for _ in range(3))
    step = partial(_matmul_step, inputs, weight, gradient)
    timer = Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())
    timer.timeit(1)  # Warm up the kernel.
    return min(timer.blocked_autorange(min_run_time=seconds).times)


def _random_matrix(width: int, device: str, name: DType) -> Tensor:
    numbers = torch.randn(width, width, device=device).to(getattr(torch, name))
    return numbers.requires_grad_()


def _matmul_step(inputs: Tensor, weight: Tensor, gradient: Tensor) -> None:
    torch.autograd.grad(linear(inputs, weight), (inputs, weight), gradient)
