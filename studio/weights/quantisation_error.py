"""Measure the quantisation error of a model's weights on a sample."""

import math
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from studio.weights import weight_samples
from studio.weights.safetensors_headers import TensorInfo

MAX_TENSORS = 32
"""Tensors sampled, evenly spread over the model."""

_VALUES_PER_TENSOR = 2048
_NF4_BLOCK = 64
_INT8_MAX = 127

_NF4_LEVELS = (
    -1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
)  # fmt: skip
"""The sixteen levels of NF4: quantiles of a normal distribution (arXiv 2305.14314, appendix E)."""

_NF4_MIDPOINTS = tuple((low + high) / 2 for low, high in pairwise(_NF4_LEVELS))


def measure_errors(tensors: Sequence[TensorInfo]) -> Mapping[str, float]:
    """Return the relative error by format: RMS of the change divided by RMS of the weights.

    int8 has one scale per row, here per sampled part of a long row.
    """
    readable = [tensor for tensor in tensors if tensor.size and weight_samples.is_readable(tensor)]
    chosen = readable[:: -(-len(readable) // MAX_TENSORS) or 1]
    samples = [
        (weight_samples.read_values(tensor, _VALUES_PER_TENSOR), tensor.shape[-1])
        for tensor in chosen
    ]
    size = math.fsum(value * value for values, _row in samples for value in values)
    if not size or not math.isfinite(size):
        return {}
    rows = (part for values, row in samples for part in _blocks(values, row))
    blocks = (part for values, _row in samples for part in _blocks(values, _NF4_BLOCK))
    squared_errors = {
        "int8": math.fsum(map(_int8_squared_error, rows)),
        "nf4": math.fsum(map(_nf4_squared_error, blocks)),
    }
    return {name: math.sqrt(tensor / size) for name, tensor in squared_errors.items()}


def _blocks(values: Sequence[float], length: int) -> Iterator[Sequence[float]]:
    for start in range(0, len(values), length):
        yield values[start : start + length]


def _nf4_squared_error(block: Sequence[float]) -> float:
    scale = max(map(abs, block)) or 1.0
    return math.fsum(
        (_NF4_LEVELS[bisect(_NF4_MIDPOINTS, value / scale)] * scale - value) ** 2 for value in block
    )


def _int8_squared_error(row: Sequence[float]) -> float:
    step = max(map(abs, row)) / _INT8_MAX or 1.0
    return math.fsum((round(value / step) * step - value) ** 2 for value in row)
