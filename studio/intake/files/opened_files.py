"""Files that a process has opened before it is sealed, for readers that open a path."""

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PosixPath
from typing import IO, Any, BinaryIO


class OpenedFile(PosixPath):
    """A path whose file is open already: `open` and `stat` do not ask the system for the path.

    All files that `open` returns share one position: readers use one at a time.
    """

    descriptor: int
    status: os.stat_result
    room: BinaryIO
    """An unnamed file for unpacked content."""

    def open(self, *_: Any, buffering: int = -1, **__: Any) -> IO[Any]:  # type: ignore[override]  # noqa: ANN401 -- one signature for its seven
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        raw = io.FileIO(self.descriptor, closefd=False)
        return raw if buffering == 0 else io.BufferedReader(raw)

    def stat(self, **_: Any) -> os.stat_result:  # noqa: ANN401 -- as of every path
        return self.status


def open_path(path: Path) -> OpenedFile:
    """Open a file for as long as this process lives."""
    opened = OpenedFile(path)
    opened.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    opened.status = os.fstat(opened.descriptor)
    opened.room = new_unnamed_file(path.parent)
    return opened


@contextmanager
def unnamed_file(near: Path) -> Iterator[BinaryIO]:
    """Yield an empty file without a name, in the folder of another file if that can be written."""
    if isinstance(near, OpenedFile):
        near.room.seek(0)
        near.room.truncate()
        yield near.room
    else:
        with new_unnamed_file(near.parent) as file:
            yield file


def new_unnamed_file(folder: Path) -> BinaryIO:
    """Create it in a folder, or where the system keeps such files if that is read-only."""
    file: BinaryIO = tempfile.TemporaryFile(  # noqa: SIM115 -- the caller closes it
        dir=folder if os.access(folder, os.W_OK) else None
    )
    return file
