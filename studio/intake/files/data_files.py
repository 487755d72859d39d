"""What in a file holds rows: itself, or each file in an archive; unpacked as it is read."""

import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from studio.intake.files.archives import Archive, archive, is_archive
from studio.intake.files.decompression import PIECE, unpacked
from studio.intake.files.limits import Limits, Meter
from studio.intake.raw_rows import Side

HEAD = PIECE
_ORDER: tuple[Side, ...] = ("train", "validation", "aside")


@dataclass(frozen=True, slots=True)
class Part:
    """Content that can be opened again and again."""

    name: str
    """The member's own; nothing for the file itself."""
    packed: Callable[[Meter], io.BufferedReader]
    folder: Path
    """Where there is room for it, unpacked."""
    side: Side = "train"

    @contextmanager
    def open(self, meter: Meter) -> Iterator[io.BufferedReader]:
        """Open it from its beginning, unpacked; forwards only if it was packed."""
        with self.packed(meter) as file, unpacked(file, meter) as content:
            yield content

    @contextmanager
    def seekable(self, meter: Meter) -> Iterator[BinaryIO]:
        """Open it so that one may go back in it: a packed one is unpacked to a nameless file."""
        with self.open(meter) as file:
            if file.seekable():
                yield file
                return
            folder = self.folder if os.access(self.folder, os.W_OK) else None
            with tempfile.TemporaryFile(dir=folder) as whole:
                shutil.copyfileobj(file, whole, PIECE)
                whole.seek(0)
                yield whole

    def head(self, *, as_packed: bool = False) -> bytes:
        """Return the first bytes, unpacked or as they are."""
        meter = Meter(Limits())
        with self.packed(meter) if as_packed else self.open(meter) as file:
            return file.read(HEAD)


@dataclass(frozen=True, slots=True)
class Parts:
    parts: list[Part]
    aside: list[str]
    """Files of an archive that are not read."""


@contextmanager
def parts(path: Path) -> Iterator[Parts]:
    """Open a file's parts; of an archive all files that hold rows: first those to learn from.

    Raises:
        InvalidError: an archive cannot be read.

    """
    if not is_archive(path):
        yield Parts([Part("", lambda _meter: path.open("rb"), path.parent)], [])
        return
    with archive(path) as opened:
        found = [_member(opened, name, path.parent) for name in opened.sides]
        yield Parts(sorted(found, key=lambda part: _ORDER.index(part.side)), opened.aside)


def _member(opened: Archive, name: str, folder: Path) -> Part:
    return Part(name, lambda meter: opened.open(name, meter), folder, opened.sides[name])
