"""Folders of safetensors files, written byte by byte: no torch is needed to make one."""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from studio.weights.safetensors_headers import DTYPES, INDEX_FILE, WEIGHTS_FILE

Values = Mapping[str, tuple[str, Sequence[float]]]
"""By name: safetensors' name of a format, and a vector of numbers."""

_CODES = {"F64": "d", "F32": "f", "F16": "e", "I64": "q"}


def write(folder: Path, values: Values, file: str = WEIGHTS_FILE, **config: Any) -> Path:  # noqa: ANN401 -- whatever a config holds
    """Write a model whose tensors are vectors."""
    folder.mkdir(exist_ok=True)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (code, numbers) in values.items():
        raw = encode(code, numbers)
        header[name] = tensor_entry(code, [len(numbers)], len(data), len(data) + len(raw))
        data += raw
    write_raw(folder / file, header, data)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"} | config))
    return folder


def write_empty(folder: Path, shapes: Mapping[str, tuple[str, list[int]]], **config: Any) -> Path:  # noqa: ANN401 -- whatever a config holds
    """Write a model of zeros, as a file that takes no room on the disk."""
    folder.mkdir(exist_ok=True)
    header: dict[str, Any] = {}
    end = 0
    for name, (code, shape) in shapes.items():
        start, end = end, end + math.prod(shape) * DTYPES[code][1] // 8
        header[name] = tensor_entry(code, shape, start, end)
    write_raw(folder / WEIGHTS_FILE, header, b"")
    with (folder / WEIGHTS_FILE).open("r+b") as opened:
        opened.truncate((folder / WEIGHTS_FILE).stat().st_size + end)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"} | config))
    return folder


def write_index(folder: Path, names: Mapping[str, str]) -> None:
    (folder / INDEX_FILE).write_text(json.dumps({"weight_map": names}))


def write_raw(path: Path, header: Any, data: bytes) -> None:  # noqa: ANN401 -- also what no header should be
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def tensor_entry(code: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": code, "shape": shape, "data_offsets": [start, end]}


def encode(code: str, numbers: Sequence[float]) -> bytes:
    if code == "BF16":
        return b"".join(struct.pack("<f", one)[2:] for one in numbers)
    return struct.pack(f"<{len(numbers)}{_CODES[code]}", *numbers)
