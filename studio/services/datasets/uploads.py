"""Large files that arrive in parts: each goes on where the one before was cut off.

    <uploads>/<id>/data  size  filename

What a day has not finished is taken away. A part is written by one request at a time.
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
    """A file on its way in."""

    id: str
    filename: str
    size: int
    """What it will come to."""
    offset: int
    """What of it is here."""

    @property
    def is_whole(self) -> bool:
        return self.offset == self.size


def create(folder: Path, filename: str, size: int, limit: int) -> PartialUpload:
    """Make room for a file.

    Raises:
        InvalidError: it has no name or no bytes.
        TooLargeError: it is more than may be kept.

    """
    remove_expired(folder)
    filename = clean_filename(filename)
    if not filename or size < 1:
        raise InvalidError("A file has a name and at least one byte.", param="filename")
    if size > limit:
        raise TooLargeError(
            "The file is larger than is taken here.", hint="Split it.", param="file"
        )
    upload = secrets.token_hex(16)
    with atomic_dirs.staging_dir(folder) as stage:
        (stage / "filename").write_text(filename, encoding="utf-8")
        (stage / "size").write_text(str(size), encoding="ascii")
        (stage / "data").touch()
        atomic_dirs.move_into_place(stage, folder / upload)
    return PartialUpload(upload, filename, size, 0)


def get(folder: Path, upload: str) -> PartialUpload:
    """Return how far a file has come.

    Raises:
        NotFoundError: there is none, or none any more.

    """
    try:
        # Of what is no name of ours, not even a path is made.
        home = folder / (upload if _ID.fullmatch(upload) else "none")
        return PartialUpload(
            upload,
            (home / "filename").read_text(encoding="utf-8"),
            int((home / "size").read_text(encoding="ascii")),
            (home / "data").stat().st_size,
        )
    except FileNotFoundError as error:
        raise NotFoundError(
            f"There is no upload {upload[:40]}.", hint="After a day, it is begun anew."
        ) from error


@contextmanager
def open_writer(folder: Path, upload: str, offset: int) -> Iterator["UploadWriter"]:
    """Open a file for its next part.

    Raises:
        ConflictError: the part is not the next, or another is just being written.
        NotFoundError: there is no such file.

    """
    parts = get(folder, upload)
    with (folder / upload / "data").open("ab", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConflictError("Another part is just being written.", hint="Ask again.") from error
        here = os.fstat(file.fileno()).st_size
        if offset != here:
            raise ConflictError(
                f"The next part begins at byte {here}, not {offset}.",
                hint="Ask how far it has come, and go on from there.",
            )
        yield UploadWriter(file, parts.size, here)


@dataclass(slots=True)
class UploadWriter:
    file: BinaryIO
    size: int
    offset: int

    def write(self, data: bytes) -> None:
        """Append what has come.

        Raises:
            DiskFullError: there is no room.
            TooLargeError: it is more than was announced.

        """
        if self.offset + len(data) > self.size:
            raise TooLargeError(f"More comes than the {self.size} bytes that were announced.")
        left = memoryview(data)
        with atomic_dirs.explain_disk_full():
            while left:
                left = left[self.file.write(left) :]
        self.offset += len(data)


def delete(folder: Path, upload: str) -> None:
    """Forget a file, as far as it has come."""
    get(folder, upload)
    shutil.rmtree(folder / upload, ignore_errors=True)


def remove_expired(folder: Path) -> None:
    """Take away what nobody has gone on with for a day."""
    old = time.time() - RETENTION_SECONDS
    for one in folder.iterdir() if folder.exists() else ():
        with suppress(FileNotFoundError):
            data = one / "data"
            if (data if data.exists() else one).stat().st_mtime < old:
                shutil.rmtree(one, ignore_errors=True)
