"""Decompress gzip and zstandard in pieces, never beyond a limit."""

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO

import zstandard

from studio.errors import InvalidError
from studio.intake.files.limits import Meter

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

CHUNK_BYTES = 2**16
_ZSTD_CHUNK_BYTES = 512
"""Small, because every four bytes can expand to a block of 128 KB, returned at once."""


def decompressed(file: io.BufferedReader, meter: Meter) -> io.BufferedReader:
    """Return the content of a packed file; other files are returned as they are."""
    unpack = _DECOMPRESSORS.get(bytes(file.peek(4)[:2]))
    return file if unpack is None else chunks_as_file(meter.count_chunks(unpack(file)))


def chunks_as_file(pieces: Iterator[bytes]) -> io.BufferedReader:
    """Return pieces as a file that can be read once, from start to end."""
    return io.BufferedReader(_ChunkReader(pieces), CHUNK_BYTES)


def damaged_error(what: str, error: Exception) -> InvalidError:
    return InvalidError(
        f"The {what} is damaged and cannot be fully unpacked ({error}).",
        hint="It may be incomplete. Compress it again, or upload it uncompressed.",
        param="file",
    )


class _ChunkReader(io.RawIOBase):
    def __init__(self, pieces: Iterator[bytes]) -> None:
        super().__init__()
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        into = memoryview(buffer)
        size = min(len(into), len(self._rest))
        into[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def _read_gzip(file: BinaryIO) -> Iterator[bytes]:
    try:
        with gzip.GzipFile(fileobj=file) as packed:
            while piece := packed.read(CHUNK_BYTES):
                yield piece
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise damaged_error("gzip file", error) from error


def _read_zstandard(file: BinaryIO) -> Iterator[bytes]:
    # Not its stream reader: that treats a truncated file as complete.
    packed = zstandard.ZstdDecompressor()
    frame = packed.decompressobj()
    is_open = False
    try:
        while block := file.read(_ZSTD_CHUNK_BYTES):
            while block:
                if frame.eof:
                    frame = packed.decompressobj()
                yield frame.decompress(block)
                is_open, block = not frame.eof, frame.unused_data
    except zstandard.ZstdError as error:
        raise damaged_error("zstandard file", error) from error
    if is_open:
        raise damaged_error("zstandard file", EOFError("it ends too early"))


_DECOMPRESSORS: dict[bytes, Callable[[BinaryIO], Iterator[bytes]]] = {
    b"\x1f\x8b": _read_gzip,
    b"\x28\xb5": _read_zstandard,
}
