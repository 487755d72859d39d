"""Stream a folder as a zip file, without holding it in memory or on disk."""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

CHUNK_BYTES = 2**20
"""Bytes per read."""


def stream_zip(folder: Path, name: str) -> Iterator[bytes]:
    """Yield a zip of a folder's files, inside a top-level folder called `name`.

    Files are stored uncompressed: weights barely compress, and it would take minutes.
    """
    buffer = _ZipBuffer()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            arcname = f"{name}/{path.relative_to(folder).as_posix()}"
            entry = zipfile.ZipInfo.from_file(path, arcname)
            with path.open("rb") as source, archive.open(entry, "w") as target:
                while chunk := source.read(CHUNK_BYTES):
                    target.write(chunk)
                    yield buffer.drain()
    yield buffer.drain()


class _ZipBuffer(io.RawIOBase):
    """Holds what was written since the last drain. Not seekable, so zipfile never seeks back."""

    def __init__(self) -> None:
        self._held = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        chunk = bytes(memoryview(data))  # type: ignore[arg-type] # whatever zipfile writes
        self._held += chunk
        return len(chunk)

    def drain(self) -> bytes:
        content = bytes(self._held)
        self._held.clear()
        return content
