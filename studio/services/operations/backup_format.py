"""The backup format: a folder or zip file with a home's files and a manifest of checksums.

`manifest.json` lists each file with its size and checksum, the version and time of the backup, and
what it excludes. `studio.db` is a snapshot of the database; `runs`, `datasets` and `models` are as
in the home.
"""

import hashlib
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Literal

from annotated_types import Ge, Le
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from studio.errors import InvalidError
from studio.schemas.validation_errors import field_errors
from studio.services.storage import locks

MANIFEST = "manifest.json"
DATABASE = "studio.db"

ProgressCallback = Callable[[int], None]
"""Gets the number of bytes copied since the last call."""
FileOpener = Callable[[str], AbstractContextManager[IO[bytes]]]

_CHUNK_BYTES = 2**20
_MANIFEST_LIMIT = 256 * 2**20
_COMPRESSED_SUFFIXES = frozenset(
    {".safetensors", ".pt", ".bin", ".parquet", ".gz", ".zip", ".gguf"}
)
"""File types that compression hardly shrinks."""


def _check_member_name(name: str) -> str:
    """Refuse a name outside the home, or of a file that is not part of a home."""
    parts = PurePosixPath(name).parts
    is_plain = name == "/".join(parts) and "\\" not in name and "\0" not in name
    if not parts or not is_plain or {"..", "/", "."} & set(parts):
        raise ValueError("is not a path inside a home")
    if parts[0] in locks.LOCK_FILES or parts[0].startswith("."):
        raise ValueError("is not part of a home")
    return name


class BackupEntry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: Annotated[int, Ge(0), Le(2**60)]
    sha256: str


class BackupManifest(BaseModel):
    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1
    studio: str
    """The version that made the backup."""
    revision: str
    """Schema revision of the database."""
    made_at: datetime
    left_out: list[str] = []
    files: dict[Annotated[str, AfterValidator(_check_member_name)], BackupEntry]

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.files.values())


@dataclass(frozen=True, slots=True)
class OpenBackup:
    """A backup open for reading."""

    manifest: BackupManifest
    open: FileOpener


def copy_file(
    source: IO[bytes], target: IO[bytes], max_bytes: int, on_progress: ProgressCallback
) -> BackupEntry:
    """Copy at most `most` bytes of a file. Return the size and checksum of what was copied."""
    digest, size = hashlib.sha256(), 0
    while chunk := source.read(min(_CHUNK_BYTES, max_bytes - size)):
        target.write(chunk)
        digest.update(chunk)
        size += len(chunk)
        on_progress(len(chunk))
    return BackupEntry(bytes=size, sha256=digest.hexdigest())


@contextmanager
def open_backup(path: Path) -> Iterator[OpenBackup]:
    """Open a backup.

    Raises:
        InvalidError: This is not a backup, or it is damaged.

    """
    if not path.exists():
        raise InvalidError(f"{path} does not exist.", hint="Enter the file or folder of a backup.")
    try:
        if path.is_dir():
            yield OpenBackup(_read_manifest(path, root := _folder_opener(path)), root)
            return
        with zipfile.ZipFile(path) as archive:
            member = _zip_opener(archive)
            yield OpenBackup(_read_manifest(path, member), member)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise InvalidError(
            f"{path} is not a backup, or it is damaged: {error}.",
            hint="Nothing was changed. Try another copy of the backup.",
        ) from error


@contextmanager
def open_for_writing(folder: Path, *, packed: bool) -> Iterator[FileOpener]:
    """Write into a folder, or into a zip file inside it."""
    if not packed:
        yield _folder_writer(folder)
        return
    with zipfile.ZipFile(zip_path(folder), "x") as archive:
        yield lambda name: archive.open(_zip_info(name), "w", force_zip64=True)


def zip_path(folder: Path) -> Path:
    return folder / "backup.zip"


def free_bytes(folder: Path) -> int:
    """Return the free bytes on the disk of a folder, which need not exist yet."""
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free


def _read_manifest(path: Path, open_file: FileOpener) -> BackupManifest:
    try:
        with open_file(MANIFEST) as file:
            manifest = BackupManifest.model_validate_json(file.read(_MANIFEST_LIMIT))
    except ValidationError as error:
        raise InvalidError(
            f"{path} is not a backup of this studio. "
            f"{field_errors(error.errors(), BackupManifest)[0]}",
            hint="A newer studio may have made it.",
        ) from error
    if DATABASE not in manifest.files:
        raise InvalidError(f"{path} contains no database.", hint="Try another copy of the backup.")
    return manifest


def _folder_opener(root: Path) -> FileOpener:
    def opened(name: str) -> IO[bytes]:
        path = root / name
        if path.is_symlink() or not path.is_file():
            raise _missing_file_error(root, name)
        return path.open("rb")

    return opened


def _zip_opener(archive: zipfile.ZipFile) -> FileOpener:
    def opened(name: str) -> IO[bytes]:
        try:
            return archive.open(name)
        except KeyError as error:
            raise _missing_file_error(Path(archive.filename or ""), name) from error

    return opened


def _folder_writer(folder: Path) -> FileOpener:
    def opened(name: str) -> IO[bytes]:
        path = folder / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path.open("xb")

    return opened


def _zip_info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, datetime.now().astimezone().timetuple()[:6])
    is_packed = PurePosixPath(name).suffix in _COMPRESSED_SUFFIXES
    info.compress_type = zipfile.ZIP_STORED if is_packed else zipfile.ZIP_DEFLATED
    info.external_attr = 0o600 << 16
    return info


def _missing_file_error(path: Path, name: str) -> InvalidError:
    return InvalidError(
        f"{path} is not a backup, or {name} is missing.", hint="Try another copy of the backup."
    )
