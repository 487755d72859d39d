"""Zip archives: which files in them are data, and none that could do harm.

Nothing is ever unpacked to where a member's name says. An archive that tries it is refused all the
same, for whoever made it meant no good.
"""

import io
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from studio.errors import InvalidError
from studio.intake.files.decompression import PIECE, damaged, joined
from studio.intake.files.formats import ARCHIVE, ENDINGS, PACKINGS, ending
from studio.intake.files.limits import Meter
from studio.intake.files.magic_bytes import WORKBOOK
from studio.intake.raw_rows import Side

Split = Literal["train", "validation", "test", ""]

_MEMBERS = 10_000
_DIRECTORY = 4 * 2**20
_ENCRYPTED = 0x1
_KINDS = {0, stat.S_IFREG, stat.S_IFDIR}
"""What a member may be: systems without kinds of files say nothing."""
_BROKEN = (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, struct.error)
"""What Python raises for one archive or another that is not whole."""
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
"""What is read in bounded memory; others may ask for gigabytes of it by one number."""
_ASIDE = re.compile(
    r"(^|/)(__MACOSX/|\.(?!/)|Thumbs\.db$|desktop\.ini$"
    r"|(README|LICEN[CS]E|NOTICE|COPYING|CHANGELOG|CITATION)(\.[^/]*)?$)",
    re.IGNORECASE,
)
"""What systems and people put beside the data."""
_OUTSIDE = re.compile(r"(^|[/\\])\.\.([/\\]|$)|^[/\\]|^[A-Za-z]:")
_SPLITS: tuple[tuple[Split, re.Pattern[str]], ...] = (
    ("validation", re.compile(r"(?<![a-z])(validation|valid|val|evaluation|eval|dev)(?![a-z])")),
    ("test", re.compile(r"(?<![a-z])(testing|test)(?![a-z])")),
    ("train", re.compile(r"(?<![a-z])(train|training)(?![a-z])")),
)
_OFFICE = {
    "xl": WORKBOOK,
    "word": "a Word document",
    "ppt": "a PowerPoint presentation",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A file in an archive that may hold rows."""

    name: str
    bytes: int
    """Unpacked, as the archive says."""
    split: Split
    """What its name says it is for, or nothing."""


@dataclass(frozen=True, slots=True)
class Archive:
    file: zipfile.ZipFile
    members: list[Member]
    """In the order of their names."""
    aside: list[str]
    """Files that hold no rows, and are not read."""

    @property
    def sides(self) -> dict[str, Side]:
        """What the rows of each member are for."""
        return sides(self.members)

    def open(self, name: str, meter: Meter) -> io.BufferedReader:
        return joined(meter.metered(_inflated(self.file, name)))


def sides(members: Iterable[Member]) -> dict[str, Side]:
    """Return what each file is for, as all of their names say.

    Rows for testing stand in for those for validation where there are none; beside them they are
    left out: what is tested on may be neither learnt nor chosen by. Where nothing else would be
    left to learn from, names do not count.
    """
    splits = {member.name: member.split for member in members}
    if not {"train", ""} & set(splits.values()):
        return dict.fromkeys(splits, "train")
    held: Split = "validation" if "validation" in splits.values() else "test"
    return {name: _side(split, held) for name, split in splits.items()}


def members(path: Path) -> list[Member]:
    """Return the files that hold rows; none if this is no archive.

    Raises:
        InvalidError: the archive is damaged, encrypted, too large or means harm.

    """
    if not is_archive(path):
        return []
    with archive(path) as opened:
        return opened.members


def is_archive(path: Path) -> bool:
    """Tell whether a file is a zip archive; an Excel workbook is one of another kind."""
    return is_zip(path) and document(path) != WORKBOOK


def is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) in {b"PK\x03\x04", b"PK\x05\x06"}


@contextmanager
def archive(path: Path) -> Iterator[Archive]:
    """Open an archive that may be read.

    Raises:
        InvalidError: see `members`.

    """
    with _opened(path) as file:
        found = sorted(file.infolist(), key=lambda info: info.filename)
        _check(found)
        files = [info for info in found if not info.is_dir()]
        aside = [info.filename for info in files if _is_aside(info)]
        kept = [_member(info) for info in files if not _is_aside(info)]
        yield Archive(file=file, members=kept, aside=aside)


def document(path: Path) -> str:
    """Name the document that an archive really is; return nothing where it is none, or damaged."""
    try:
        with _opened(path) as file:
            return _document(file)
    except InvalidError:
        return ""


def _document(file: zipfile.ZipFile) -> str:
    names = file.namelist()
    if "[Content_Types].xml" in names:
        folders = {name.partition("/")[0] for name in names}
        return next((kind for name, kind in _OFFICE.items() if name in folders), "a document")
    if {"mimetype", "content.xml"} <= set(names):
        told = next(_inflated(file, "mimetype"), b"")
        return "an OpenDocument table" if b"spreadsheet" in told else "an OpenDocument text"
    return "a PyTorch file" if any(name.endswith("/data.pkl") for name in names) else ""


class _Guarded(io.BufferedReader):
    """A file of which no more is read at once than the directory of an archive may take."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _DIRECTORY:
            raise _too_many()
        return super().read(size)


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    with _Guarded(path.open("rb", buffering=0)) as file:
        try:
            opened = zipfile.ZipFile(file)
        except _BROKEN as error:
            raise damaged("zip archive", error) from error
        with opened:
            yield opened


def within(name: str, error: InvalidError) -> InvalidError:
    """Say of an error which file of an archive it is about."""
    message = f"{name} in the zip archive: {error.message}"
    return InvalidError(message, hint=error.hint, param=error.param)


def _check(found: list[zipfile.ZipInfo]) -> None:
    if len(found) > _MEMBERS:
        raise _too_many()
    names = [info.filename for info in found]
    if len(set(names)) < len(names):
        raise _refused("holds two files of one name", "Pack it anew.")
    if "" in names:
        raise _refused("holds a file without a name", "Pack it anew.")
    for info in found:
        _check_member(info)


def _check_member(info: zipfile.ZipInfo) -> None:
    hint, kind = "Pack only the files with rows.", stat.S_IFMT(info.external_attr >> 16)
    if _OUTSIDE.search(info.orig_filename) or kind == stat.S_IFLNK:
        raise _refused("holds a file that points outside of it", hint)
    if kind not in _KINDS:
        raise _refused("holds what is no file", hint)
    if info.flag_bits & _ENCRYPTED:
        raise _refused("is encrypted", "Pack the files without a password.")
    if ending(info.filename) == ARCHIVE and not _ASIDE.search(info.filename):
        raise _refused(f"holds another, {info.filename}", "Unpack that one first.")
    if info.compress_type not in _METHODS:
        raise _refused("is packed by a method that is not read", "Choose Deflate, or none.")


def _too_many() -> InvalidError:
    return _refused(f"holds more than {_MEMBERS:,} files", "Join the rows in fewer files.")


def _refused(what: str, hint: str) -> InvalidError:
    return InvalidError(f"The zip archive {what}.", hint=hint, param="file")


def _is_aside(info: zipfile.ZipInfo) -> bool:
    named = ending(info.filename)
    readable = named in PACKINGS or named in ENDINGS
    return not readable or not info.file_size or _ASIDE.search(info.filename) is not None


def _member(info: zipfile.ZipInfo) -> Member:
    return Member(name=info.filename, bytes=info.file_size, split=split_of(info.filename))


def split_of(name: str) -> Split:
    """Return what a file's name says it is for; a folder's name where its own says nothing."""
    for part in reversed(PurePosixPath(name.lower()).parts):
        for split, pattern in _SPLITS:
            if pattern.search(part):
                return split
    return ""


def _side(split: Split, held: Split) -> Side:
    if split in {"train", ""}:
        return "train"
    return "validation" if split == held else "aside"


def _inflated(file: zipfile.ZipFile, name: str) -> Iterator[bytes]:
    try:
        with file.open(name) as packed:
            while piece := packed.read(PIECE):
                yield piece
    except (*_BROKEN, EOFError, zlib.error) as error:
        raise damaged("packed file", error) from error
