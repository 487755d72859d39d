"""List the tensors in safetensors files, and the dtypes they are loaded in.

Reads headers only, and validates them. A file starts with the length of the header in eight bytes;
the JSON header gives each tensor's dtype, shape and position.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from studio.errors import InvalidError

DType = Literal["float32", "bfloat16", "float16"]
"""The dtypes that weights may be loaded in."""

FALLBACK_DTYPE: DType = "float32"
_DTYPES: tuple[DType, ...] = get_args(DType)
_MATRIX_DIMENSIONS = 2

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

MAX_HEADER_BYTES = 32 * 2**20
"""In bytes. 36,000 tensors, more than any known model has, take 5 MB."""
MAX_INDEX_BYTES = 32 * 2**20
MAX_SHARDS = 2000
MAX_DIMENSIONS = 8
LENGTH_BYTES = 8

DTYPES: dict[str, tuple[str, int]] = {
    "F64": ("float64", 64),
    "F32": ("float32", 32),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F6_E2M3": ("float6_e2m3", 6),
    "F6_E3M2": ("float6_e3m2", 6),
    "F4": ("float4", 4),
    "C64": ("complex64", 64),
    "I64": ("int64", 64),
    "I32": ("int32", 32),
    "I16": ("int16", 16),
    "I8": ("int8", 8),
    "U64": ("uint64", 64),
    "U32": ("uint32", 32),
    "U16": ("uint16", 16),
    "U8": ("uint8", 8),
    "BOOL": ("bool", 8),
}
"""Safetensors dtypes, with torch's names and the bits per value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """A tensor: its dtype and shape, and the position of its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    """Offset of its first byte in the file."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_float(self) -> bool:
        return "float" in self.dtype


def weight_files(folder: Path) -> list[Path]:
    """Return the files with a model's weights, as transformers would choose them.

    Raises:
        InvalidError: the index is unreadable, or names a file that is missing.

    """
    if (folder / WEIGHTS_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    if not (folder / INDEX_FILE).is_file():
        return []
    names = sorted(set(_index_files(folder / INDEX_FILE)))
    if len(names) > MAX_SHARDS:
        raise _file_error(folder / INDEX_FILE, f"names {len(names)} files")
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise _file_error(
                folder / INDEX_FILE, f"names {name[:100]}, which is not in the same folder"
            )
    return [folder / name for name in names]


def read_tensors(file: Path) -> list[TensorInfo]:
    """Return the tensors of one file.

    Raises:
        InvalidError: the header is wrong, or the file is truncated.

    """
    size = file.stat().st_size
    header, start = _read_header(file, size)
    return [
        _build_tensor(file, start, size, name, entry)
        for name, entry in header.items()
        if name != "__metadata__"
    ]


def _index_files(path: Path) -> Iterator[str]:
    if path.stat().st_size > MAX_INDEX_BYTES:
        raise _file_error(path, "is too large")
    weight_map = _parse_json(path, path.read_bytes()).get("weight_map")
    if not isinstance(weight_map, dict):
        raise _file_error(path, "has no weight_map")
    yield from map(str, weight_map.values())


def _read_header(file: Path, size: int) -> tuple[dict[str, Any], int]:
    """Return the header, and the offset of the data after it."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(LENGTH_BYTES), "little")
        if size < LENGTH_BYTES or length > size - LENGTH_BYTES:
            raise _file_error(file, "is incomplete, or not a safetensors file")
        if length > MAX_HEADER_BYTES:
            raise _file_error(file, "has a header that is too long")
        return _parse_json(file, opened.read(length)), LENGTH_BYTES + length


def _parse_json(path: Path, content: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _file_error(path, "has a header that is not valid JSON") from error
    if not isinstance(parsed, dict):
        raise _file_error(path, "has a header that is not a JSON object")
    return parsed


def _build_tensor(file: Path, start: int, size: int, name: str, entry: Any) -> TensorInfo:  # noqa: ANN401 -- from an untrusted file
    match entry:
        case {"dtype": str(code), "shape": list(shape), "data_offsets": [int(first), int(last)]}:
            pass
        case _:
            raise _file_error(file, f"does not give the position of {name[:100]}")
    if not _is_shape(shape) or not 0 <= first <= last:
        raise _file_error(file, f"gives an impossible shape or position for {name[:100]}")
    if start + last > size:
        raise _file_error(file, "is incomplete")
    dtype, bits = DTYPES.get(code, (code[:20].lower(), 0))
    # The width of an unknown dtype is unknown, so only its position can be checked.
    if bits and (last - first) * 8 != -(-math.prod(shape) * bits // 8) * 8:
        raise _file_error(file, f"gives a size for {name[:100]} that does not match its shape")
    return TensorInfo(name=name, dtype=dtype, shape=tuple(shape), file=file, start=start + first)


def _is_shape(shape: list[Any]) -> bool:
    return len(shape) <= MAX_DIMENSIONS and all(
        type(size) is int and 0 <= size < 2**48 for size in shape
    )


def _file_error(path: Path, what: str) -> InvalidError:
    return InvalidError(
        f"{path.name} cannot be used: it {what}.",
        hint="Download the model again; a file may be incomplete.",
        param="base_model",
    )


def load_dtypes(tensors: Sequence[TensorInfo]) -> dict[str, DType]:
    """Return the dtype each weight is loaded in, by tensor name, as the model was saved.

    Each weight keeps its stored dtype, whatever the config says. Two exceptions change no value:
    dtypes that no run supports become float32, and so do the vectors of a model with mixed dtypes,
    because a norm does not accept input in one dtype and weights in a narrower one.
    """
    weights = [tensor for tensor in tensors if tensor.is_float]
    is_mixed = len({_loadable_dtype(tensor.dtype) for tensor in weights}) > 1
    return {tensor.name: _load_dtype(tensor, is_mixed=is_mixed) for tensor in weights}


def count_by_dtype(tensors: Sequence[TensorInfo], dtypes: Mapping[str, DType]) -> dict[DType, int]:
    """Return how many weights are loaded in each dtype, most common first."""
    counted: Counter[DType] = Counter()
    for tensor in tensors:
        if tensor.name in dtypes:
            counted[dtypes[tensor.name]] += tensor.size
    return {dtype: count for dtype, count in counted.most_common() if count}


def _load_dtype(tensor: TensorInfo, *, is_mixed: bool) -> DType:
    is_vector = len(tensor.shape) < _MATRIX_DIMENSIONS
    return FALLBACK_DTYPE if is_mixed and is_vector else _loadable_dtype(tensor.dtype)


def _loadable_dtype(stored: str) -> DType:
    return next((dtype for dtype in _DTYPES if dtype == stored), FALLBACK_DTYPE)
