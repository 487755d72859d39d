"""Measure on a sample how loading weights in another dtype changes them."""

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from studio.weights import weight_samples
from studio.weights.native_dtypes import DType
from studio.weights.safetensors_headers import TensorInfo

MAX_TENSORS = 32
"""Tensors sampled, evenly spread over the model."""
VALUES_PER_TENSOR = 2048

_EXACT_DTYPES: Mapping[str, frozenset[str]] = {
    "float32": frozenset({"float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"}),
    "bfloat16": frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"}),
    "float16": frozenset({"float16", "float8_e4m3fn", "float8_e5m2"}),
}
"""The stored dtypes that each dtype represents exactly."""


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


def _measure_cast(tensors: Sequence[TensorInfo], to: DType) -> CastRounding | None:
    rounded = [
        tensor for tensor in tensors if tensor.size and tensor.dtype not in _EXACT_DTYPES[to]
    ]
    readable = [tensor for tensor in rounded if weight_samples.is_readable(tensor)]
    if not readable:
        return None
    chosen = readable[:: -(-len(readable) // MAX_TENSORS)]
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
