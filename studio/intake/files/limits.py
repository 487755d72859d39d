"""Limits for reading a file, the meter that enforces them, and the progress of reading.

A small file can unpack to a very large one. Each error names the value and the limit.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PosixPath
from typing import IO, Any, Self, TypeVar

from studio.errors import TooLargeError

MAX_ROW_BYTES = 10 * 2**20
MAX_TOTAL_BYTES = 4 * 2**30
MAX_EXPANSION = 1_000
"""Maximum ratio of unpacked to packed size; plain text reaches 3 to 100."""
ALWAYS_ALLOWED_BYTES = 256 * 2**20
"""The unpacked size that any file may have, however small it is."""
MAX_COLUMNS = 1_000
"""More than a table of texts has; every page and check takes time per column."""
MAX_CELLS = 100_000_000
"""Rows times columns. An empty row counts as one cell."""
MAX_BLANK_LINES = 1_100_000
"""Consecutive blank lines. Spreadsheets pad a table with up to 1,048,576 of them."""
MAX_REQUEST_BYTES = 8 * 2**20
MAX_REQUEST_SECONDS = 1.0
"""A file beyond either limit is read in a child process, limited by `MAX_CHILD_SECONDS`."""
MAX_CHILD_SECONDS = 3_600.0
MAX_CHILD_MEMORY = 4 * 2**30


class SlowReadingError(TooLargeError):
    """Reading the file took more CPU time than allowed."""


class _ExemptTime(threading.local):
    seconds = 0.0
    """CPU time of this thread that is charged to no file."""


_EXEMPT_TIME = _ExemptTime()


@contextmanager
def exempt_from_deadlines() -> Iterator[None]:
    """Exclude from every deadline what is loaded once for all files."""
    start = time.thread_time()
    try:
        yield
    finally:
        _EXEMPT_TIME.seconds += time.thread_time() - start


def _charged_seconds() -> float:
    return time.thread_time() - _EXEMPT_TIME.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """A limit on the CPU time of the thread that created it.

    CPU time, so that a busy machine does not make a file slow.
    """

    seconds: float
    end: float

    @classmethod
    def after(cls, seconds: float) -> Self:
        return cls(seconds=seconds, end=_charged_seconds() + seconds)

    def check(self) -> None:
        if _charged_seconds() > self.end:
            raise SlowReadingError(
                f"Reading the file takes more than {self.seconds:.3g} seconds of CPU time.",
                hint="Split the file, or remove rows.",
                param="file",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimits:
    """Limits of the images of a dataset: one beyond its limit makes its row unusable."""

    bytes: int = 20 * 2**20
    """Of one image, as it is stored."""
    pixels: int = 50_000_000
    """Of one image; each takes up to four bytes while it is decoded."""
    total_bytes: int = 20 * 2**30
    allow_internal: bool = False
    """Whether images may be downloaded from this machine and its network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a file: a row beyond its limit is left out, a file beyond its own is refused."""

    row_bytes: int = MAX_ROW_BYTES
    total_bytes: int = MAX_TOTAL_BYTES
    """Everything that is unpacked, and all converted rows."""
    free_bytes: int = ALWAYS_ALLOWED_BYTES
    cells: int = MAX_CELLS
    at_once_seconds: float = field(default_factory=lambda: MAX_REQUEST_SECONDS)
    deadline: Deadline | None = None
    images: ImageLimits = field(default_factory=ImageLimits)

    def for_request(self) -> Self:
        """Return the same limits for reading within a request."""
        return self.within(self.at_once_seconds)

    def within(self, seconds: float) -> Self:
        """Return the same limits, with this much CPU time of this thread from now on."""
        return replace(self, deadline=Deadline.after(seconds))


class Meter:
    """Measures the cost of reading one file, all parts together, and stops at a limit."""

    def __init__(self, limits: Limits, file_bytes: int = 0) -> None:
        self._limits, self._file_bytes = limits, file_bytes
        self._bytes = self._cells = 0

    def count_chunks(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self.add_bytes(len(piece))
            yield piece

    def add_bytes(self, size: int) -> None:
        """Count unpacked bytes.

        Raises:
            TooLargeError: the total is too large, or too large for the size of the file.

        """
        self.check_time()
        self._bytes += size
        if self._bytes > self._limits.total_bytes:
            raise _too_large_error(
                f"The file unpacks to more than {self._limits.total_bytes / 1e9:.3g} GB."
            )
        if self._bytes > max(self._limits.free_bytes, MAX_EXPANSION * self._file_bytes):
            raise _too_large_error(
                f"The file of {self._file_bytes:,} bytes unpacks to more than "
                f"{self._bytes / 1e6:,.0f} MB; the limit is {MAX_EXPANSION:,} times its size."
            )

    def add_cells(self, count: int) -> None:
        """Count the cells of a row.

        Raises:
            TooLargeError: the row has too many, or all rows together.

        """
        self.check_time()
        check_column_count(count)
        self._cells += max(count, 1)
        if self._cells > self._limits.cells:
            raise _too_large_error(
                f"The file has more than {self._limits.cells:,} cells (rows times columns)."
            )

    def check_time(self) -> None:
        if self._limits.deadline is not None:
            self._limits.deadline.check()


def check_column_count(count: int) -> None:
    """Refuse a table with too many columns.

    Raises:
        TooLargeError: the table has too many columns.

    """
    if count > MAX_COLUMNS:
        raise TooLargeError(
            f"The file has {count:,} columns; the limit is {MAX_COLUMNS:,}.",
            hint="Keep only the columns to train on.",
            param="file",
        )


def blank_lines_error(number: int, limit: int) -> TooLargeError:
    """Return the error for a file whose line `number` is one blank line too many."""
    return TooLargeError(
        f"The file has more than {limit:,} consecutive blank lines, up to line {number:,}.",
        hint="Remove the blank lines.",
        param="file",
    )


def _too_large_error(sentence: str) -> TooLargeError:
    return TooLargeError(sentence, hint="Split the file, or remove rows.", param="file")


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
