"""Content packed with gzip or zstandard, a piece at a time and never beyond a limit."""

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
"""So little, because each four bytes can stand for a block of 128 KB, given back at once."""


def decompressed(file: io.BufferedReader, meter: Meter) -> io.BufferedReader:
    """Return the content of a packed file; a file that is not packed as it is."""
    unpack = _DECOMPRESSORS.get(bytes(file.peek(4)[:2]))
    return file if unpack is None else chunks_as_file(meter.count_chunks(unpack(file)))


def chunks_as_file(pieces: Iterator[bytes]) -> io.BufferedReader:
    """Return pieces as a file that can be read once, from its beginning to its end."""
    return io.BufferedReader(_ChunkReader(pieces), CHUNK_BYTES)


def damaged_error(what: str, error: Exception) -> InvalidError:
    return InvalidError(
        f"The {what} is damaged and cannot be unpacked to its end ({error}).",
        hint="Was it copied whole? Pack it anew, or bring the file as it is.",
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
    # Not its stream reader: that takes a file which is cut off for one that ends there.
    packed = zstandard.ZstdDecompressor()
    frame = packed.decompressobj()
    begun = False
    try:
        while read := file.read(_ZSTD_CHUNK_BYTES):
            while read:
                if frame.eof:
                    frame = packed.decompressobj()
                yield frame.decompress(read)
                begun, read = not frame.eof, frame.unused_data
    except zstandard.ZstdError as error:
        raise damaged_error("zstandard file", error) from error
    if begun:
        raise damaged_error("zstandard file", EOFError("it ends too early"))


_DECOMPRESSORS: dict[bytes, Callable[[BinaryIO], Iterator[bytes]]] = {
    b"\x1f\x8b": _read_gzip,
    b"\x28\xb5": _read_zstandard,
}
