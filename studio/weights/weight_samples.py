"""Read a few thousand weights of each tensor, to measure their magnitudes.

They are from the middle of a tensor, because its ends may be padding. Plain Python: numpy is not a
dependency of Mantissa Studio, and the slices below run in C.
"""

import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import BinaryIO

from studio.weights.safetensors_headers import TensorInfo

VALUES_PER_TENSOR = 4096
MAX_VALUES = 2**20
"""Maximum number of values read per model: half a second of work at most."""
MIN_VALUES_PER_TENSOR = 64
"""Minimum number of values per tensor; if a model has too many tensors for that, only some are
read."""

FLOAT16_MAX = 65504.0
FLOAT16_MIN_EXPONENT = -24
"""The smallest positive number that float16 represents, as a power of two."""

_DTYPE_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_FLOAT32_MAX = 3.4028234663852886e38
_EXPONENT_BIAS = 127
_NONFINITE_EXPONENT = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightStats:
    """The distribution of a model's weights, estimated from a sample; counts are of the sample."""

    sampled: int = 0
    largest: float | None = None
    over_float16: int = 0
    """How many are beyond float16's range."""
    not_finite: int = 0
    exponent_shares: Mapping[int, float] = field(default_factory=dict)
    """Share of all weights by power of two: 0.25 at -6 means a quarter lie in [2**-6, 2**-5)."""

    @property
    def below_float16(self) -> float:
        """Share of the weights that float16 would round to zero, or nearly."""
        return sum(
            share for power, share in self.exponent_shares.items() if power < FLOAT16_MIN_EXPONENT
        )


@dataclass(slots=True)
class _StatsAccumulator:
    sampled: int = 0
    largest: float = 0.0
    over: int = 0
    not_finite: int = 0
    weights: int = 0
    powers: Counter[int] = field(default_factory=Counter)

    def add(self, size: int, raw: bytes) -> None:
        """Add a tensor's sample: little-endian float32, representing `size` weights."""
        count = len(raw) // 4
        values = struct.unpack(f"<{count}f", raw)
        exponents = _count_exponents(raw, count)
        if lost := exponents.pop(_NONFINITE_EXPONENT, 0):
            values = tuple(value for value in values if abs(value) <= _FLOAT32_MAX)
        largest = max(max(values, default=0.0), -min(values, default=0.0))
        if largest > FLOAT16_MAX:
            self.over += sum(abs(value) > FLOAT16_MAX for value in values)
        self.largest = max(self.largest, largest)
        self.not_finite += lost
        self.sampled += count
        self.weights += size
        exponents.pop(0, None)  # zeros can always change
        for exponent, times in exponents.items():
            self.powers[exponent - _EXPONENT_BIAS] += round(times / count * size)


def collect_stats(tensors: Sequence[TensorInfo]) -> WeightStats:
    """Collect statistics from a sample of each floating-point tensor."""
    chosen = _choose_tensors(
        [
            tensor_info
            for tensor_info in tensors
            if tensor_info.dtype in _DTYPE_BYTES and tensor_info.size
        ]
    )
    if not chosen:
        return WeightStats()
    each = min(VALUES_PER_TENSOR, max(MIN_VALUES_PER_TENSOR, MAX_VALUES // len(chosen)))
    tally = _StatsAccumulator()
    for file, group in groupby(chosen, key=lambda one: one.file):
        with file.open("rb") as opened:
            for tensor in group:
                tally.add(tensor.size, _as_float32(tensor.dtype, _read_bytes(opened, tensor, each)))
    return WeightStats(
        sampled=tally.sampled,
        largest=tally.largest,
        over_float16=tally.over,
        not_finite=tally.not_finite,
        exponent_shares={
            power: count / tally.weights for power, count in sorted(tally.powers.items())
        },
    )


def is_readable(tensor: TensorInfo) -> bool:
    """Tell whether the values of a tensor can be read: not in formats of 8 bits or fewer."""
    return tensor.dtype in _DTYPE_BYTES


def read_values(tensor: TensorInfo, limit: int) -> tuple[float, ...]:
    """Return adjacent weights from the middle of a tensor."""
    with tensor.file.open("rb") as opened:
        raw = _read_bytes(opened, tensor, limit)
    if tensor.dtype == "float64":
        return struct.unpack(f"<{len(raw) // 8}d", raw)
    raw = _as_float32(tensor.dtype, raw)
    return struct.unpack(f"<{len(raw) // 4}f", raw)


def _choose_tensors(tensors: list[TensorInfo]) -> list[TensorInfo]:
    """Return all tensors, or evenly spread ones if there are too many."""
    stride = -(-len(tensors) * MIN_VALUES_PER_TENSOR // MAX_VALUES)
    return tensors[:: max(1, stride)]


def _read_bytes(opened: BinaryIO, tensor: TensorInfo, limit: int) -> bytes:
    width = _DTYPE_BYTES[tensor.dtype]
    count = min(limit, tensor.size)
    opened.seek(tensor.start + (tensor.size - count) // 2 * width)
    return opened.read(count * width)


def _as_float32(dtype: str, raw: bytes) -> bytes:
    count = len(raw) // _DTYPE_BYTES[dtype]
    if dtype == "float32":
        return raw
    if dtype == "bfloat16":
        # A bfloat16 is the upper half of a float32.
        widened = bytearray(4 * count)
        widened[2::4], widened[3::4] = raw[0::2], raw[1::2]
        return bytes(widened)
    values = struct.unpack(f"<{count}{'e' if dtype == 'float16' else 'd'}", raw)
    return struct.pack(f"<{count}f", *map(_clamp_to_float32, values))


def _clamp_to_float32(value: float) -> float:
    """Clamp a float64 to float32's range; NaN and infinity are unchanged."""
    if value - value == 0:
        return max(-_FLOAT32_MAX, min(_FLOAT32_MAX, value))
    return value


def _count_exponents(raw: bytes, count: int) -> Counter[int]:
    """Count each exponent, as float32 stores it: the eight bits below the sign.

    Shifted left by one bit, each exponent fills the high byte of its number, and bytes are counted
    seven times as fast as numbers.
    """
    shifted = (int.from_bytes(raw, "little") << 1).to_bytes(4 * count + 1, "little")
    exponents = shifted[3 : 4 * count : 4]
    return Counter({exponent: exponents.count(exponent) for exponent in set(exponents)})
