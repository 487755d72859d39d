"""Read plain text as rows: its paragraphs, or its lines if no blank line separates paragraphs."""

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import BinaryIO

from studio.errors import InvalidError
from studio.intake.files.limits import MAX_BLANK_LINES, blank_lines_error
from studio.intake.problems import ProblemCode
from studio.intake.raw_rows import FileNote, RawRow, RowStream, UnreadableRow

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


_HEAD_BYTES = 2**20
"""A text without a blank line in this many bytes is read by line."""


def rows_in_text(file: BinaryIO, limit: int) -> RowStream:
    lines = read_lines(file, limit)
    first = list(_read_head(lines))
    by_paragraph = _has_paragraphs(first)
    yield FileNote(ProblemCode.BY_PARAGRAPH if by_paragraph else ProblemCode.BY_LINE)
    block = TextBlock(limit)
    for number, line in chain(first, lines):
        blank = line is not None and not line.strip()
        if blank or not by_paragraph:
            yield from block.flush()
        if not blank:
            block.add(number, line)
    yield from block.flush()


class TextBlock:
    """Collects the lines of one row, without growing beyond the row limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._first = self._size = 0
        """Its first line, and its size in bytes, including lines that were dropped."""
        self._kept = bytearray()

    def add(self, number: int, line: bytes | None) -> None:
        self._first = self._first or number
        self._size += self._limit + 1 if line is None else len(line)
        if line is not None and self._size <= self._limit:
            self._kept += line

    def flush(self) -> Iterator[RawRow | UnreadableRow]:
        """Yield the row, if any, and reset."""
        number, size, content = self._first, self._size, bytes(self._kept)
        self._first = self._size = 0
        self._kept.clear()
        if size > self._limit:
            yield too_long_row(number, self._limit)
        elif content.strip():
            yield _build_row(number, content)


def _build_row(number: int, content: bytes) -> RawRow | UnreadableRow:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        return not_utf8_row(number, error)
    return RawRow(number, {"text": text.replace("\r\n", "\n").strip("\n").rstrip()})


def _read_head(lines: Iterator[tuple[int, bytes | None]]) -> Iterator[tuple[int, bytes | None]]:
    size = 0
    for number, line in lines:
        yield number, line
        size += len(line or b"")
        if size > _HEAD_BYTES:
            return


def _has_paragraphs(first: Iterable[tuple[int, bytes | None]]) -> bool:
    """Tell whether there is a blank line between two others."""
    text = ["x" if line is None or line.strip() else " " for _number, line in first]
    return " " in "".join(text).strip()


_HEADING = re.compile(rb" {0,3}##?([ \t]|\r?\n?$)")
_UNDERLINE = re.compile(rb" {0,3}(=+|-{2,})[ \t]*\r?\n?$")
_NO_TITLE = re.compile(rb"\s*($|[-*+>#|<`~]|\d+[.)]\s)")
"""Lines that an underline does not make a heading: list items, quotes, tables, code and so on."""
_FENCE = re.compile(rb" {0,3}(`{3,}(?=[^`]*$)|~{3,})\s*(.*)", re.DOTALL)

_Line = tuple[int, bytes | None]


def rows_in_markdown(file: BinaryIO, limit: int) -> RowStream:
    """Yield sections with their headings; a heading without text joins the section below it."""
    yield FileNote(ProblemCode.BY_HEADING)
    block, has_content, fence = TextBlock(limit), False, b""
    for before, (number, line), after in _with_neighbours(read_lines(file, limit)):
        fence, open_before = _open_fence(fence, line or b""), fence
        heading = not open_before and _is_heading(before, line or b"", after)
        if heading and has_content:
            yield from block.flush()
            has_content = False
        block.add(number, line)
        has_content = has_content or _has_text(line, heading=heading)
    yield from block.flush()


def _with_neighbours(lines: Iterable[_Line]) -> Iterator[tuple[bytes, _Line, bytes]]:
    before, current = b"", None
    for line in chain(lines, [None]):
        if current is not None:
            yield before, current, (line[1] or b"") if line else b""
            before = current[1] or b""
        current = line


def _is_heading(before: bytes, line: bytes, after: bytes) -> bool:
    """Tell whether a line is a heading: marked with #, or underlined after a blank line."""
    if _HEADING.match(line):
        return True
    alone = not before.strip() and not _NO_TITLE.match(line)
    return alone and _UNDERLINE.match(after) is not None


def _has_text(line: bytes | None, *, heading: bool) -> bool:
    if line is None:
        return True
    return not heading and bool(line.strip()) and not _UNDERLINE.match(line)


def _open_fence(fence: bytes, line: bytes) -> bytes:
    """Return the fence of the code block that is open after this line, or b""."""
    match = _FENCE.match(line)
    if match is None:
        return fence
    marks, info = match[1], match[2]
    if not fence:
        return bytes(marks)
    closes = marks[:1] == fence[:1] and len(marks) >= len(fence) and not info.strip()
    return b"" if closes else fence
