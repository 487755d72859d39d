"""Zip archives: find the data files in them, and refuse harmful archives.

Nothing is ever unpacked to a path that a member names. An archive that tries this is refused
anyway, because it is malicious.
"""

import gzip
import io
import re
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, Literal

import zstandard

from studio.errors import InvalidError
from studio.intake.files.formats import (
    ARCHIVE_EXTENSION,
    COMPRESSIONS,
    EXTENSIONS,
    WORKBOOK,
    extension,
)
from studio.intake.files.limits import Limits, Meter
from studio.intake.files.opened_files import unnamed_file
from studio.intake.raw_rows import AssignedSplit

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


NamedSplit = Literal["train", "validation", "test", ""]

_MAX_MEMBERS = 50_000
"""Images in a dataset are many."""
_MAX_DIRECTORY_BYTES = 8 * 2**20
_ENCRYPTED_FLAG = 0x1
_MEMBER_TYPES = {0, stat.S_IFREG, stat.S_IFDIR}
"""Permitted file types of members; 0 is written by systems without file types."""
_ZIP_ERRORS = (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, struct.error)
"""What Python raises for damaged archives."""
_COMPRESSION_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
"""Methods that need bounded memory; others may request gigabytes of it with one number."""
_IGNORED_NAMES = re.compile(
    r"(^|/)(__MACOSX/|\.(?!/)|Thumbs\.db$|desktop\.ini$"
    r"|(README|LICEN[CS]E|NOTICE|COPYING|CHANGELOG|CITATION)(\.[^/]*)?$)",
    re.IGNORECASE,
)
"""Files that systems and people put beside the data."""
_UNSAFE_PATH = re.compile(r"(^|[/\\])\.\.([/\\]|$)|^[/\\]|^[A-Za-z]:")
_SPLIT_PATTERNS: tuple[tuple[NamedSplit, re.Pattern[str]], ...] = (
    ("validation", re.compile(r"(?<![a-z])(validation|valid|val|evaluation|eval|dev)(?![a-z])")),
    ("test", re.compile(r"(?<![a-z])(testing|test)(?![a-z])")),
    ("train", re.compile(r"(?<![a-z])(train|training)(?![a-z])")),
)
_OFFICE_FOLDERS = {
    "xl": WORKBOOK,
    "word": "a Word document",
    "ppt": "a PowerPoint presentation",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A file in an archive that may hold rows."""

    name: str
    bytes: int
    """Unpacked size, as declared in the archive."""
    split: NamedSplit
    """The split its name indicates, or ""."""


@dataclass(frozen=True, slots=True)
class Archive:
    file: zipfile.ZipFile
    members: list[Member]
    """Sorted by name."""
    ignored: list[str]
    """Files without rows, which are not read."""

    @property
    def file_names(self) -> list[str]:
        """All files, with rows or without."""
        return [info.filename for info in self.file.infolist() if not info.is_dir()]

    @property
    def assigned_splits(self) -> dict[str, AssignedSplit]:
        """The split of each member's rows."""
        return assign_splits(self.members)

    def open(self, name: str, meter: Meter) -> io.BufferedReader:
        return chunks_as_file(meter.count_chunks(_decompress_member(self.file, name)))


def assign_splits(members: Iterable[Member]) -> dict[str, AssignedSplit]:
    """Return the split of each file, as given by all of their names.

    Test rows are used for validation if there are no validation rows; otherwise they are left out,
    because test data must be neither trained on nor used for choosing. If nothing else would be
    left to train on, names are ignored.
    """
    splits = {member.name: member.split for member in members}
    if not {"train", ""} & set(splits.values()):
        return dict.fromkeys(splits, "train")
    held_out: NamedSplit = "validation" if "validation" in splits.values() else "test"
    return {name: _assign_split(split, held_out) for name, split in splits.items()}


def list_members(path: Path) -> list[Member]:
    """Return the files that hold rows; none if this is not an archive.

    Raises:
        InvalidError: the archive is damaged, encrypted, too large or malicious.

    """
    if not is_archive(path):
        return []
    with open_archive(path) as opened:
        return opened.members


def is_archive(path: Path) -> bool:
    """Tell whether a file is a zip archive and not an Excel workbook."""
    return is_zip(path) and document_type(path) != WORKBOOK


def is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) in {b"PK\x03\x04", b"PK\x05\x06"}


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Open an archive after checking it.

    Raises:
        InvalidError: see `list_members`.

    """
    with _open_zip(path) as file:
        infos = sorted(file.infolist(), key=lambda info: info.filename)
        _check_members(infos)
        files = [info for info in infos if not info.is_dir()]
        ignored = [info.filename for info in files if _is_ignored(info)]
        members = [_to_member(info) for info in files if not _is_ignored(info)]
        yield Archive(file=file, members=members, ignored=ignored)


def document_type(path: Path) -> str:
    """Return the type of document that an archive really is, or ""."""
    try:
        with _open_zip(path) as file:
            return _document_type(file)
    except InvalidError:
        return ""


def _document_type(file: zipfile.ZipFile) -> str:
    names = file.namelist()
    if "[Content_Types].xml" in names:
        folders = {name.partition("/")[0] for name in names}
        return next(
            (kind for name, kind in _OFFICE_FOLDERS.items() if name in folders), "a document"
        )
    if {"mimetype", "content.xml"} <= set(names):
        mimetype = next(_decompress_member(file, "mimetype"), b"")
        return "an OpenDocument table" if b"spreadsheet" in mimetype else "an OpenDocument text"
    return "a PyTorch file" if any(name.endswith("/data.pkl") for name in names) else ""


class _BoundedReader(io.BufferedReader):
    """A file that refuses reads larger than the directory of an archive may be."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MAX_DIRECTORY_BYTES:
            raise _too_many_members()
        return super().read(size)


@contextmanager
def _open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    with _BoundedReader(path.open("rb", buffering=0)) as file:
        try:
            opened = zipfile.ZipFile(file)
        except _ZIP_ERRORS as error:
            raise damaged_error("zip archive", error) from error
        with opened:
            yield opened


def error_in_member(name: str, error: InvalidError) -> InvalidError:
    """Add to an error which file of an archive it is about."""
    message = f"{name} in the zip archive: {error.message}"
    return InvalidError(message, hint=error.hint, param=error.param)


def _check_members(infos: list[zipfile.ZipInfo]) -> None:
    if len(infos) > _MAX_MEMBERS:
        raise _too_many_members()
    names = [info.filename for info in infos]
    if len(set(names)) < len(names):
        raise _archive_error("contains two files with the same name", "Create it again.")
    if "" in names:
        raise _archive_error("contains a file without a name", "Create it again.")
    for info in infos:
        _check_member(info)


def _check_member(info: zipfile.ZipInfo) -> None:
    hint, kind = "Include only the files with rows.", stat.S_IFMT(info.external_attr >> 16)
    if _UNSAFE_PATH.search(info.orig_filename) or kind == stat.S_IFLNK:
        raise _archive_error("contains a file that points outside the archive", hint)
    if kind not in _MEMBER_TYPES:
        raise _archive_error("contains something that is not a regular file", hint)
    if info.flag_bits & _ENCRYPTED_FLAG:
        raise _archive_error("is encrypted", "Create it without a password.")
    if extension(info.filename) == ARCHIVE_EXTENSION and not _IGNORED_NAMES.search(info.filename):
        raise _archive_error(f"contains another archive, {info.filename}", "Unpack that one first.")
    if info.compress_type not in _COMPRESSION_METHODS:
        raise _archive_error("uses an unsupported compression method", "Use Deflate, or none.")


def _too_many_members() -> InvalidError:
    return _archive_error(
        f"contains more than {_MAX_MEMBERS:,} files", "Combine the rows in fewer files."
    )


def _archive_error(what: str, hint: str) -> InvalidError:
    return InvalidError(f"The zip archive {what}.", hint=hint, param="file")


def _is_ignored(info: zipfile.ZipInfo) -> bool:
    suffix = extension(info.filename)
    readable = suffix in COMPRESSIONS or suffix in EXTENSIONS
    return not readable or not info.file_size or _IGNORED_NAMES.search(info.filename) is not None


def _to_member(info: zipfile.ZipInfo) -> Member:
    return Member(name=info.filename, bytes=info.file_size, split=split_from_name(info.filename))


def split_from_name(name: str) -> NamedSplit:
    """Return the split that a file's name indicates, or else the name of its folder."""
    for part in reversed(PurePosixPath(name.lower()).parts):
        for split, pattern in _SPLIT_PATTERNS:
            if pattern.search(part):
                return split
    return ""


def _assign_split(split: NamedSplit, held_out: NamedSplit) -> AssignedSplit:
    if split in {"train", ""}:
        return "train"
    return "validation" if split == held_out else "aside"


def _decompress_member(file: zipfile.ZipFile, name: str) -> Iterator[bytes]:
    try:
        with file.open(name) as packed:
            while piece := packed.read(CHUNK_BYTES):
                yield piece
    except (*_ZIP_ERRORS, EOFError, zlib.error) as error:
        raise damaged_error("packed file", error) from error


HEAD_BYTES = CHUNK_BYTES
_SPLIT_ORDER: tuple[AssignedSplit, ...] = ("train", "validation", "aside")


@dataclass(frozen=True, slots=True)
class DataFile:
    """Content that can be opened repeatedly."""

    name: str
    """The member's name; "" for the file itself."""
    open_packed: Callable[[Meter], io.BufferedReader]
    path: Path
    """The file it is in; its unpacked content goes beside that."""
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
            with unnamed_file(self.path) as unpacked:
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
        yield DataFiles([DataFile("", lambda _meter: path.open("rb"), path)], [])
        return
    with open_archive(path) as opened:
        data_files = [_from_member(opened, name, path) for name in opened.assigned_splits]
        yield DataFiles(
            sorted(data_files, key=lambda part: _SPLIT_ORDER.index(part.split)), opened.ignored
        )


def _from_member(opened: Archive, name: str, path: Path) -> DataFile:
    return DataFile(
        name, lambda meter: opened.open(name, meter), path, opened.assigned_splits[name]
    )
