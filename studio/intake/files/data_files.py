"""The parts of a file that hold rows: itself, or the files in an archive, unpacked on reading."""

import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from studio.intake.files.archives import Archive, is_archive, open_archive
from studio.intake.files.decompression import CHUNK_BYTES, decompressed
from studio.intake.files.limits import Limits, Meter
from studio.intake.raw_rows import AssignedSplit

HEAD_BYTES = CHUNK_BYTES
_SPLIT_ORDER: tuple[AssignedSplit, ...] = ("train", "validation", "aside")


@dataclass(frozen=True, slots=True)
class DataFile:
    """Content that can be opened repeatedly."""

    name: str
    """The member's name; "" for the file itself."""
    open_packed: Callable[[Meter], io.BufferedReader]
    folder: Path
    """A folder with room for the unpacked content."""
    split: AssignedSplit = "train"

    @contextmanager
    def open(self, meter: Meter) -> Iterator[io.BufferedReader]:
        """Open it from the start, unpacked; seekable only if it was not packed."""
        with self.open_packed(meter) as file, decompressed(file, meter) as content:
            yield content

    @contextmanager
    def open_seekable(self, meter: Meter) -> Iterator[BinaryIO]:
        """Open it for seeking: packed content is unpacked to an unnamed temporary file."""
        with self.open(meter) as file:
            if file.seekable():
                yield file
                return
            folder = self.folder if os.access(self.folder, os.W_OK) else None
            with tempfile.TemporaryFile(dir=folder) as unpacked:
                shutil.copyfileobj(file, unpacked, CHUNK_BYTES)
                unpacked.seek(0)
                yield unpacked

    def read_head(self, *, as_packed: bool = False) -> bytes:
        """Return the first bytes, unpacked or as stored."""
        meter = Meter(Limits())
        with self.open_packed(meter) if as_packed else self.open(meter) as file:
            return file.read(HEAD_BYTES)


@dataclass(frozen=True, slots=True)
class DataFiles:
    files: list[DataFile]
    ignored: list[str]
    """Files in an archive that are not read."""


@contextmanager
def open_data_files(path: Path) -> Iterator[DataFiles]:
    """Open a file's parts; in an archive, all files that hold rows, training files first.

    Raises:
        InvalidError: an archive cannot be read.

    """
    if not is_archive(path):
        yield DataFiles([DataFile("", lambda _meter: path.open("rb"), path.parent)], [])
        return
    with open_archive(path) as opened:
        data_files = [_from_member(opened, name, path.parent) for name in opened.assigned_splits]
        yield DataFiles(
            sorted(data_files, key=lambda part: _SPLIT_ORDER.index(part.split)), opened.ignored
        )


def _from_member(opened: Archive, name: str, folder: Path) -> DataFile:
    return DataFile(
        name, lambda meter: opened.open(name, meter), folder, opened.assigned_splits[name]
    )
