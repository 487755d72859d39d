"""NaN, infinity and blanks in a model's files: found without torch, before anything is loaded.

A model of up to 64 MB is read whole. Of a larger one as much is read, an equal share of each tensor
from its middle; the run itself looks at every weight before its first step.
"""

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from studio.weights.safetensors_headers import Tensor

MOST_BYTES = 2**26
_PIECE = 2**22

_MATRIX = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """What no sound model holds. Counts are of what was read."""

    not_finite: Mapping[str, int] = field(default_factory=dict)
    """Weights that are NaN or infinite, by tensor."""
    blank: tuple[str, ...] = ()
    """Matrices that are all zeros, as a file that was never written to its end has them."""
    is_whole: bool = True
    """Whether every weight was read."""


def scan(tensors: Sequence[Tensor], most: int = MOST_BYTES) -> Broken:
    """Look for NaN, infinity and blank matrices."""
    known = [tensor for tensor in tensors if tensor.dtype in _FORMATS and tensor.size]
    total = sum(map(_bytes, known))
    share = min(1.0, most / max(total, 1))
    found: dict[str, int] = {}
    blank: list[str] = []
    for tensor in known:
        count, is_blank = _look(tensor, share)
        if count:
            found[tensor.name] = count
        if is_blank and len(tensor.shape) >= _MATRIX:
            blank.append(tensor.name)
    return Broken(not_finite=found, blank=tuple(blank), is_whole=share == 1)


def _look(tensor: Tensor, share: float) -> tuple[int, bool]:
    width, count = _FORMATS[tensor.dtype]
    looked = max(1, math.ceil(tensor.size * share))
    broken, is_blank = 0, True
    with tensor.file.open("rb") as opened:
        opened.seek(tensor.start + (tensor.size - looked) // 2 * width)
        for piece in _pieces(opened, looked * width):
            broken += count(piece)
            is_blank = is_blank and piece.count(0) == len(piece)
    return broken, is_blank


def _pieces(opened: BinaryIO, left: int) -> Iterator[bytes]:
    while left > 0:
        piece = opened.read(min(left, _PIECE))
        yield piece
        # A file that shrinks meanwhile has nothing more to give.
        left -= len(piece) or left


def _bytes(tensor: Tensor) -> int:
    return tensor.size * _FORMATS[tensor.dtype][0]


def _float16(piece: bytes) -> int:
    """Count numbers whose five bits of exponent are all set: those of the higher byte."""
    high = piece[1::2]
    return len(high) - len(high.translate(None, _ALL_SET))


_EXPONENT = 0x7C
_ALL_SET = bytes(byte for byte in range(256) if byte & _EXPONENT == _EXPONENT)


def _bfloat16(piece: bytes) -> int:
    return _eight_bits(piece, 2, lambda: _shifted(piece))


def _float32(piece: bytes) -> int:
    return _eight_bits(piece, 4, lambda: struct.unpack(f"<{len(piece) // 4}f", piece))


def _float64(piece: bytes) -> int:
    return _eight_bits(piece, 8, lambda: struct.unpack(f"<{len(piece) // 8}d", piece))


def _eight_bits(piece: bytes, width: int, values: Callable[[], Sequence[float]]) -> int:
    """Count what is not finite; only where a highest byte allows it are numbers made of bytes."""
    high = piece[width - 1 :: width]
    if not high.count(0x7F) and not high.count(0xFF):
        return 0
    return sum(not math.isfinite(value) for value in values())


def _shifted(piece: bytes) -> Sequence[float]:
    """Return bfloat16 values: each is the upper half of a float32."""
    whole = bytearray(2 * len(piece))
    whole[2::4], whole[3::4] = piece[0::2], piece[1::2]
    return struct.unpack(f"<{len(piece) // 2}f", whole)


_FORMATS: Mapping[str, tuple[int, Callable[[bytes], int]]] = {
    "float64": (8, _float64),
    "float32": (4, _float32),
    "float16": (2, _float16),
    "bfloat16": (2, _bfloat16),
}
"""By format: bytes of a number, and what counts those that are not finite."""
