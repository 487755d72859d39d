"""Find NaN, infinity and blank matrices in a model's files, without torch.

A model of up to 64 MB is read in full. Of a larger one, 64 MB are read, an equal share from the
middle of each tensor; the run itself checks every weight before its first step.
"""

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from studio.weights.safetensors_headers import TensorInfo

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
