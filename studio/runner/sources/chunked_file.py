"""Write a file as it arrives in chunks: count, report progress and enforce a size limit."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from studio.data_sources import FetchLimits
from studio.errors import TooLargeError
from studio.runner.execution import ReportProgress

CHUNK_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class ChunkWriter:
    """Writes chunks to files; `before` counts the bytes of earlier files."""

    limits: FetchLimits
    report: ReportProgress
    total: int | None = None
    """Bytes of all files together; None if unknown."""
    before: int = 0

    def append(self, path: Path, pieces: Iterable[bytes], start: int = 0) -> int:
        """Write chunks to a file from an offset on. Return the file's new length.

        Raises:
            TooLargeError: the data exceeds the size limit.

        """
        self.check_limit(self.total or 0)
        received = start
        with path.open("r+b" if start else "wb") as file:
            file.seek(start)
            file.truncate()
            for piece in pieces:
                received += len(piece)
                self.check_limit(self.before + received)
                file.write(piece)
                self.report_progress(received)
        return received

    def check_limit(self, size: int) -> None:
        if size > self.limits.bytes:
            raise TooLargeError(
                f"The file is larger than the limit of {format_size(self.limits.bytes)}.",
                hint="The operator can raise the limit: STUDIO_UPLOAD_LIMIT_BYTES.",
            )

    def report_progress(self, received: int) -> None:
        done = self.before + received
        if self.total:
            self.report(
                f"downloaded {format_size(done)} of {format_size(self.total)}",
                0.9 * min(1, done / self.total),
            )
        else:
            self.report(f"downloaded {format_size(done)}", None)


def format_size(size: int) -> str:
    """Format a size for a progress message."""
    for unit, worth in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= worth:
            return f"{size / worth:.3g} {unit}"
    return f"{size} B"
