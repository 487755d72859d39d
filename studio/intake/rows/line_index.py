"""Read a row of a long file by number, without reading all rows before it."""

import json
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

_STRIDE = 512
"""One row offset is indexed for this many rows."""


def read_row(path: Path, number: int) -> dict[str, Any]:
    """Return a row of a JSON Lines file, counted from 1.

    Raises:
        LookupError: the file has fewer rows.

    """
    with path.open("rb") as file:
        file.seek(row_offset(path, number))
        line = file.readline()
    if not line:
        raise IndexError(number)
    row: dict[str, Any] = json.loads(line)
    return row


def row_offset(path: Path, number: int) -> int:
    """Return the byte offset of a row; past the last row, the end of the file.

    Raises:
        LookupError: the file has far fewer rows.

    """
    state = path.stat()
    offsets = _block_offsets(path, state.st_mtime_ns, state.st_size)
    block, rest = divmod(number - 1, _STRIDE)
    with path.open("rb") as file:
        file.seek(offsets[block])
        return offsets[block] + sum(map(len, islice(file, rest)))


@lru_cache(maxsize=16)
def _block_offsets(path: Path, _changed: int, _size: int) -> list[int]:
    offsets, offset = list[int](), 0
    with path.open("rb") as file:
        for i, line in enumerate(file):
            if i % _STRIDE == 0:
                offsets.append(offset)
            offset += len(line)
    return offsets
