"""Read a few thousand weights of each tensor, to measure their magnitudes.

They are from the middle of a tensor, because its ends may be padding. Plain Python: numpy is not a
dependency of Mantissa Studio, and the slices below run in C.
"""

import math
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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


MAX_SCANNED_BYTES = 2**26
_CHUNK_BYTES = 2**22

_MATRIX_DIMENSIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightDefects:
    """Defects of a model's weights. Counts cover what was read."""

    not_finite: Mapping[str, int] = field(default_factory=dict)
    """Weights that are NaN or infinite, by tensor."""
    all_zero: tuple[str, ...] = ()
    """Matrices that are all zeros, as in a file that was not completely written."""
    is_complete: bool = True
    """Whether every weight was read."""


def scan(tensors: Sequence[TensorInfo], limit: int = MAX_SCANNED_BYTES) -> WeightDefects:
    """Find NaN, infinity and blank matrices."""
    readable = [tensor for tensor in tensors if tensor.dtype in _COUNTERS and tensor.size]
    total = sum(map(_tensor_bytes, readable))
    share = min(1.0, limit / max(total, 1))
    not_finite: dict[str, int] = {}
    blank: list[str] = []
    for tensor in readable:
        count, is_blank = _scan_tensor(tensor, share)
        if count:
            not_finite[tensor.name] = count
        if is_blank and len(tensor.shape) >= _MATRIX_DIMENSIONS:
            blank.append(tensor.name)
    return WeightDefects(not_finite=not_finite, all_zero=tuple(blank), is_complete=share == 1)


def _scan_tensor(tensor: TensorInfo, share: float) -> tuple[int, bool]:
    width, count = _COUNTERS[tensor.dtype]
    scanned = max(1, math.ceil(tensor.size * share))
    broken, is_blank = 0, True
    with tensor.file.open("rb") as opened:
        opened.seek(tensor.start + (tensor.size - scanned) // 2 * width)
        for piece in _read_chunks(opened, scanned * width):
            broken += count(piece)
            is_blank = is_blank and piece.count(0) == len(piece)
    return broken, is_blank


def _read_chunks(opened: BinaryIO, left: int) -> Iterator[bytes]:
    while left > 0:
        piece = opened.read(min(left, _CHUNK_BYTES))
        yield piece
        # Stop if the file shrinks meanwhile.
        left -= len(piece) or left


def _tensor_bytes(tensor: TensorInfo) -> int:
    return tensor.size * _COUNTERS[tensor.dtype][0]


def _count_float16(piece: bytes) -> int:
    """Count numbers whose five exponent bits are all set; they are in the high byte."""
    high = piece[1::2]
    return len(high) - len(high.translate(None, _FULL_EXPONENT_BYTES))


_EXPONENT_MASK = 0x7C
_FULL_EXPONENT_BYTES = bytes(byte for byte in range(256) if byte & _EXPONENT_MASK == _EXPONENT_MASK)


def _count_bfloat16(piece: bytes) -> int:
    return _count_by_high_byte(piece, 2, lambda: _bfloat16_values(piece))


def _count_float32(piece: bytes) -> int:
    return _count_by_high_byte(piece, 4, lambda: struct.unpack(f"<{len(piece) // 4}f", piece))


def _count_float64(piece: bytes) -> int:
    return _count_by_high_byte(piece, 8, lambda: struct.unpack(f"<{len(piece) // 8}d", piece))


def _count_by_high_byte(piece: bytes, width: int, values: Callable[[], Sequence[float]]) -> int:
    """Count values that are not finite; decode the values only if a high byte allows one."""
    high = piece[width - 1 :: width]
    if not high.count(0x7F) and not high.count(0xFF):
        return 0
    return sum(not math.isfinite(value) for value in values())


def _bfloat16_values(piece: bytes) -> Sequence[float]:
    """Return bfloat16 values: each is the upper half of a float32."""
    widened = bytearray(2 * len(piece))
    widened[2::4], widened[3::4] = piece[0::2], piece[1::2]
    return struct.unpack(f"<{len(piece) // 2}f", widened)


_COUNTERS: Mapping[str, tuple[int, Callable[[bytes], int]]] = {
    "float64": (8, _count_float64),
    "float32": (4, _count_float32),
    "float16": (2, _count_float16),
    "bfloat16": (2, _count_bfloat16),
}
"""By dtype: bytes per value, and the function that counts values that are not finite."""
