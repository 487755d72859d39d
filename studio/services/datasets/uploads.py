"""Resumable uploads: large files that arrive in parts.

    <uploads>/<id>/data  size  filename

Unfinished uploads are removed after a day. Only one request at a time can write to an upload.
"""

import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from studio.errors import ConflictError, InvalidError, NotFoundError, TooLargeError
from studio.services.datasets.datasets import clean_filename
from studio.services.storage import atomic_dirs

RETENTION_SECONDS = 24 * 3600.0
_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class PartialUpload:
    """An unfinished upload."""

    id: str
    filename: str
    size: int
    """Total size in bytes."""
    offset: int
    """Bytes received so far."""

    @property
    def is_whole(self) -> bool:
        return self.offset == self.size


def create(folder: Path, filename: str, size: int, limit: int) -> PartialUpload:
    """Start an upload.

    Raises:
        InvalidError: The file has no name or no bytes.
        TooLargeError: The file exceeds the limit.

    """
    remove_expired(folder)
    filename = clean_filename(filename)
    if not filename or size < 1:
        raise InvalidError("A file needs a name and at least one byte.", param="filename")
    if size > limit:
        raise TooLargeError(
            "The file is larger than the upload limit.",
            hint="Split it into smaller files.",
            param="file",
        )
    upload = secrets.token_hex(16)
    with atomic_dirs.staging_dir(folder) as stage:
        (stage / "filename").write_text(filename, encoding="utf-8")
        (stage / "size").write_text(str(size), encoding="ascii")
        (stage / "data").touch()
        atomic_dirs.move_into_place(stage, folder / upload)
    return PartialUpload(upload, filename, size, 0)


def get(folder: Path, upload: str) -> PartialUpload:
    """Return the state of an upload.

    Raises:
        NotFoundError: There is no such upload, or it has expired.

    """
    try:
        # Never build a path from an id that this module did not create.
        home = folder / (upload if _ID.fullmatch(upload) else "none")
        return PartialUpload(
            upload,
            (home / "filename").read_text(encoding="utf-8"),
            int((home / "size").read_text(encoding="ascii")),
            (home / "data").stat().st_size,
        )
    except FileNotFoundError as error:
        raise NotFoundError(
            f"Upload {upload[:40]} does not exist.", hint="Uploads expire after a day: start again."
        ) from error


@contextmanager
def open_writer(folder: Path, upload: str, offset: int) -> Iterator["UploadWriter"]:
    """Open an upload for its next part.

    Raises:
        ConflictError: This is not the next part, or another is being written.
        NotFoundError: There is no such upload.

    """
    parts = get(folder, upload)
    with (folder / upload / "data").open("ab", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConflictError("Another part is being written.", hint="Try again.") from error
        current_offset = os.fstat(file.fileno()).st_size
        if offset != current_offset:
            raise ConflictError(
                f"The next part begins at byte {current_offset}, not {offset}.",
                hint="Query the upload's offset and continue from there.",
            )
        yield UploadWriter(file, parts.size, current_offset)


@dataclass(slots=True)
class UploadWriter:
    file: BinaryIO
    size: int
    offset: int

    def write(self, data: bytes) -> None:
        """Append bytes.

        Raises:
            DiskFullError: The disk is full.
            TooLargeError: More bytes arrived than were announced.

        """
        if self.offset + len(data) > self.size:
            raise TooLargeError(f"The upload exceeds its announced size of {self.size} bytes.")
        remaining = memoryview(data)
        with atomic_dirs.explain_disk_full():
            while remaining:
                remaining = remaining[self.file.write(remaining) :]
        self.offset += len(data)


def delete(folder: Path, upload: str) -> None:
    """Delete an upload."""
    get(folder, upload)
    shutil.rmtree(folder / upload, ignore_errors=True)


def remove_expired(folder: Path) -> None:
    """Delete uploads that have received nothing for a day."""
    old = time.time() - RETENTION_SECONDS
    for upload_dir in folder.iterdir() if folder.exists() else ():
        with suppress(FileNotFoundError):
            data = upload_dir / "data"
            if (data if data.exists() else upload_dir).stat().st_mtime < old:
                shutil.rmtree(upload_dir, ignore_errors=True)
