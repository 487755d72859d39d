"""Read plain text as rows: its paragraphs, or its lines if no blank line separates paragraphs."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import BinaryIO

from studio.intake.problems import ProblemCode
from studio.intake.raw_rows import FileNote, RawRow, RowStream, UnreadableRow
from studio.intake.readers.text_lines import not_utf8_row, read_lines, too_long_row

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
