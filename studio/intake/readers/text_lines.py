"""Read the lines of a text without holding a line beyond a limit in memory."""

from collections.abc import Iterator
from typing import BinaryIO

from studio.errors import InvalidError
from studio.intake.files.limits import MAX_BLANK_LINES, blank_lines_error
from studio.intake.problems import ProblemCode
from studio.intake.raw_rows import UnreadableRow

_SKIP_BYTES = 2**20


def read_lines(
    file: BinaryIO, limit: int, blank_lines: int = MAX_BLANK_LINES
) -> Iterator[tuple[int, bytes | None]]:
    """Yield each line with its number; None replaces a line that is too long.

    Raises:
        TooLargeError: more than `blank_lines` consecutive lines are blank.

    """
    number = last = 0
    while line := file.readline(limit + 1):
        number += 1
        if not line.isspace():
            last = number
        elif number - last > blank_lines:
            raise blank_lines_error(number, blank_lines)
        if len(line) <= limit or line.endswith(b"\n"):
            yield number, line
            continue
        while piece := file.readline(_SKIP_BYTES):
            if piece.endswith(b"\n"):
                break
        yield number, None


def not_utf8_row(number: int, error: UnicodeDecodeError) -> UnreadableRow:
    """Return the entry for a row that is not valid UTF-8."""
    byte = error.object[error.start]
    return UnreadableRow(
        number, ProblemCode.NOT_UTF8, f"byte {byte:#04x} at position {error.start + 1}"
    )


def too_long_row(number: int, limit: int) -> UnreadableRow:
    return UnreadableRow(number, ProblemCode.TOO_LONG, row_limit_text(limit))


def row_limit_text(limit: int) -> str:
    """Format the row limit."""
    return f"the limit is {limit / 2**20:.3g} MB"


def too_long_error(place: str, limit: int, hint: str) -> InvalidError:
    """Return the error for a file with a row too long to skip."""
    return InvalidError(f"{place} is longer than {limit / 2**20:.3g} MB.", hint=hint, param="file")
