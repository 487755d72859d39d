"""Report how far a file has been read, whatever reads and unpacks it."""

from collections.abc import Callable, Iterator
from pathlib import Path, PosixPath
from typing import IO, Any, TypeVar

ProgressCallback = Callable[[float], None]
"""Receives the share of the work that is done, from 0 to 1."""

_REPORT_INTERVAL = 200
"""Rows between two progress checks."""
_MIN_STEP = 0.005

T = TypeVar("T")


class TrackedPath(PosixPath):
    """A path that records the files opened through it, because readers do not report progress."""

    opened: list[IO[Any]]

    def open(self, *args: Any, **options: Any) -> IO[Any]:  # type: ignore[override]  # noqa: ANN401 -- one signature for its seven
        file: IO[Any] = super().open(*args, **options)
        self.opened.append(file)
        return file

    @property
    def share_read(self) -> float:
        """Share of the last opened file that has been read, measured on the packed file."""
        self.opened = [file for file in self.opened if not file.closed]
        size = self.stat().st_size
        return min(1.0, self.opened[-1].tell() / size) if self.opened and size else 0.0


def track_path(path: Path) -> TrackedPath:
    tracked = TrackedPath(path)
    tracked.opened = []
    return tracked


def report_progress(
    rows: Iterator[T], path: TrackedPath, on_progress: ProgressCallback
) -> Iterator[T]:
    """Yield the rows and report progress from time to time."""
    last = 0.0
    for i, row in enumerate(rows):
        if i % _REPORT_INTERVAL == 0 and (share := path.share_read) >= last + _MIN_STEP:
            last = share
            on_progress(share)
        yield row
