"""Measure on a sample how loading or quantising weights changes them."""

import math
import struct
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import get_args

from studio.weights import weight_samples
from studio.weights.safetensors_headers import DType, TensorInfo

MAX_TENSORS = 32
"""Tensors sampled, evenly spread over the model."""
VALUES_PER_TENSOR = 2048

_EXACT_DTYPES: Mapping[str, frozenset[str]] = {
    "float32": frozenset({"float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"}),
    "bfloat16": frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"}),
    "float16": frozenset({"float16", "float8_e4m3fn", "float8_e5m2"}),
}
"""The stored dtypes that each dtype represents exactly."""

_NF4_BLOCK = 64
_INT8_MAX = 127

_NF4_LEVELS = (
    -1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
)  # fmt: skip
"""The sixteen levels of NF4: quantiles of a normal distribution (arXiv 2305.14314, appendix E)."""

_NF4_MIDPOINTS = tuple((low + high) / 2 for low, high in pairwise(_NF4_LEVELS))


@dataclass(frozen=True, slots=True, kw_only=True)
class CastRounding:
    """The effect of loading weights in a dtype that cannot represent all of their values."""

    to: DType
    stored: tuple[str, ...]
    """The dtypes they are stored in."""
    weights: int
    sampled: int
    changed: float
    """Share of the sample that changes."""
    max_relative_change: float
    """Maximum over the sample of |after - before| / |before|; 1 for a weight that becomes zero."""
    mean_relative_change: float
    """Mean over the sample, including unchanged weights."""


def measure_casts(tensors: Sequence[TensorInfo]) -> dict[DType, CastRounding]:
    """Return the rounding of loading in each dtype, without dtypes that change nothing."""
    measured = ((to, _measure_cast(tensors, to)) for to in get_args(DType))
    return {to: cast for to, cast in measured if cast is not None}


def measure_errors(tensors: Sequence[TensorInfo]) -> Mapping[str, float]:
    """Return the relative error by format: RMS of the change divided by RMS of the weights.

    int8 has one scale per row, here per sampled part of a long row.
    """
    samples = [
        (weight_samples.read_values(tensor, VALUES_PER_TENSOR), tensor.shape[-1])
        for tensor in _choose_tensors(tensors)
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


def _measure_cast(tensors: Sequence[TensorInfo], to: DType) -> CastRounding | None:
    rounded = [
        tensor for tensor in tensors if tensor.size and tensor.dtype not in _EXACT_DTYPES[to]
    ]
    chosen = _choose_tensors(rounded)
    if not chosen:
        return None
    changes = [change for tensor in chosen for change in _relative_changes(tensor, to)]
    return CastRounding(
        to=to,
        stored=tuple(sorted({tensor.dtype for tensor in rounded})),
        weights=sum(tensor.size for tensor in rounded),
        sampled=len(changes),
        changed=sum(change > 0 for change in changes) / max(len(changes), 1),
        max_relative_change=max(changes, default=0.0),
        mean_relative_change=math.fsum(changes) / max(len(changes), 1),
    )


def _choose_tensors(tensors: Sequence[TensorInfo]) -> list[TensorInfo]:
    readable = [tensor for tensor in tensors if tensor.size and weight_samples.is_readable(tensor)]
    return readable[:: -(-len(readable) // MAX_TENSORS) or 1]


def _relative_changes(tensor: TensorInfo, to: DType) -> Iterator[float]:
    """Yield the relative change of each sampled weight. NaN and infinity are counted elsewhere."""
    before = [
        value
        for value in weight_samples.read_values(tensor, VALUES_PER_TENSOR)
        if math.isfinite(value)
    ]
    for old, new in zip(before, _round_values(before, to), strict=True):
        # A weight beyond the range becomes infinite: it has no relative change.
        if math.isfinite(new):
            yield abs((new - old) / old) if old else 0.0


def _round_values(values: Sequence[float], to: DType) -> Sequence[float]:
    if to == "float16":
        return [_to_float16(value) for value in values]
    narrow = [_to_float32(value) for value in values]
    return narrow if to == "float32" else _to_bfloat16(narrow)


def _to_float32(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _to_float16(value: float) -> float:
    try:
        return float(struct.unpack("<e", struct.pack("<e", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _to_bfloat16(values: Sequence[float]) -> tuple[float, ...]:
    """Round float32 values to the nearest bfloat16, ties to even: keep the upper 16 bits."""
    bits = struct.unpack(f"<{len(values)}I", struct.pack(f"<{len(values)}f", *values))
    rounded = ((word + 0x7FFF + ((word >> 16) & 1)) & 0xFFFF0000 for word in bits)
    return struct.unpack(f"<{len(values)}f", struct.pack(f"<{len(values)}I", *rounded))


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
