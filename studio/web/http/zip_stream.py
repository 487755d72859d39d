"""A folder as one zip file, sent while it is read: nothing is kept in memory or on the disk."""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

CHUNK_BYTES = 2**20
"""Bytes read at once."""


def stream_zip(folder: Path, name: str) -> Iterator[bytes]:
    """Yield a zip of a folder's files, which lie in it under a folder of that name.

    They are stored as they are: weights do not get smaller, and packing them would take minutes.
    """
    sent = _ZipBuffer()
    with zipfile.ZipFile(sent, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            inside = f"{name}/{path.relative_to(folder).as_posix()}"
            entry = zipfile.ZipInfo.from_file(path, inside)
            with path.open("rb") as source, archive.open(entry, "w") as target:
                while piece := source.read(CHUNK_BYTES):
                    target.write(piece)
                    yield sent.drain()
    yield sent.drain()


class _ZipBuffer(io.RawIOBase):
    """What was written since it was last taken. It cannot go back, so the zip never asks it to."""

    def __init__(self) -> None:
        self._held = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        piece = bytes(memoryview(data))  # type: ignore[arg-type] # whatever zipfile writes
        self._held += piece
        return len(piece)

    def drain(self) -> bytes:
        taken = bytes(self._held)
        self._held.clear()
        return taken
