"""Rows of running text: its paragraphs; or its lines, where nothing parts paragraphs."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import BinaryIO

from studio.intake.problems import Code
from studio.intake.raw_rows import Note, Row, Rows, Unread
from studio.intake.readers.text_lines import left_out_for_length, lines, not_utf8

_LOOK = 2**20
"""A text without a blank line in so many bytes is one of lines."""


def rows_in_text(file: BinaryIO, limit: int) -> Rows:
    found = lines(file, limit)
    first = list(_look(found))
    blocks = _are_parted(first)
    yield Note(Code.BY_PARAGRAPH if blocks else Code.BY_LINE)
    block = Block(limit)
    for number, line in chain(first, found):
        blank = line is not None and not line.strip()
        if blank or not blocks:
            yield from block.close()
        if not blank:
            block.add(number, line)
    yield from block.close()


class Block:
    """Lines that make one row, which grows no longer than a row may."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._first = self._size = 0
        """Of which line on, and how many bytes, kept or not."""
        self._kept = bytearray()

    def add(self, number: int, line: bytes | None) -> None:
        self._first = self._first or number
        self._size += self._limit + 1 if line is None else len(line)
        if line is not None and self._size <= self._limit:
            self._kept += line

    def close(self) -> Iterator[Row | Unread]:
        """Yield the row, if there is one, and begin anew."""
        number, size, written = self._first, self._size, bytes(self._kept)
        self._first = self._size = 0
        self._kept.clear()
        if size > self._limit:
            yield left_out_for_length(number, self._limit)
        elif written.strip():
            yield _row(number, written)


def _row(number: int, written: bytes) -> Row | Unread:
    try:
        text = written.decode()
    except UnicodeDecodeError as error:
        return not_utf8(number, error)
    return Row(number, {"text": text.replace("\r\n", "\n").strip("\n").rstrip()})


def _look(found: Iterator[tuple[int, bytes | None]]) -> Iterator[tuple[int, bytes | None]]:
    size = 0
    for number, line in found:
        yield number, line
        size += len(line or b"")
        if size > _LOOK:
            return


def _are_parted(first: Iterable[tuple[int, bytes | None]]) -> bool:
    """Whether a blank line stands between two that are not."""
    text = ["x" if line is None or line.strip() else " " for _number, line in first]
    return " " in "".join(text).strip()
