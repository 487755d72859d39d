"""Read rows of a converted file: by page, by number, or by search."""

import json
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from studio.intake.rows.pipeline import NUMBER_BYTES, numbers_path

PAGE_BYTES = 4 * 2**20
"""A page of very long rows ends early, so that it stays fast to send and render."""
SEARCH_SECONDS = 0.3
"""How long to search before returning the position reached."""

_BACKWARD_BLOCK = 500
"""Rows in the first block of a backward search."""
_STRIDE = 512
"""One row offset is indexed for this many rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedRow:
    number: int
    """Its row number, counted from 1."""
    row: dict[str, Any]
    """A canonical row: see `studio.intake.row_formats.schema`."""
    source: int | None = None
    """Its row number in the original file, if known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    rows: list[NumberedRow]
    has_more: bool
    searched_to: int | None = None
    """The last row searched, if time ran out or the page was full."""

    @property
    def next_after(self) -> int | None:
        if not self.has_more:
            return None
        return self.rows[-1].number if self.searched_to is None else self.searched_to


def read_page(path: Path, *, after: int, limit: int) -> Page:
    """Return the rows after number `after`."""
    return _build_page(path, islice(_numbered_lines(path), after, None), limit)


def read_rows(path: Path, numbers: Collection[int], *, after: int, limit: int) -> Page:
    """Return the rows with these numbers after number `after`."""
    selected = sorted(number for number in numbers if number > after)
    page_numbers = frozenset(selected[:limit])
    lines = (
        pair
        for pair in islice(_numbered_lines(path), max(page_numbers, default=0))
        if pair[0] in page_numbers
    )
    page = _build_page(path, lines, limit)
    return replace(page, has_more=page.has_more or len(selected) > limit)


def search_rows(path: Path, words: str, *, after: int, limit: int) -> Page:
    """Return the rows after number `after` that contain these words. Case-insensitive."""
    matches: list[NumberedRow] = []
    deadline = time.monotonic() + SEARCH_SECONDS
    for number, line in islice(_numbered_lines(path), after, None):
        if len(matches) == limit or time.monotonic() > deadline:
            return Page(rows=matches, has_more=True, searched_to=number - 1)
        matches += _matching_rows(path, number, line, words)
    return Page(rows=matches, has_more=False)


def search_rows_backward(path: Path, words: str, *, before: int) -> Page:
    """Return the nearest row before number `before` that contains these words.

    Case-insensitive. A file is read forwards, so this searches a few hundred rows, then twice as
    many before them, and so on.
    """
    deadline, size = time.monotonic() + SEARCH_SECONDS, _BACKWARD_BLOCK
    first = before
    while first > 1:
        if time.monotonic() > deadline:
            return Page(rows=[], has_more=True, searched_to=first)
        last, first = first - 1, max(1, first - size)
        size *= 2
        matches: list[NumberedRow] = []
        for number, line in islice(_numbered_lines(path), first - 1, last):
            matches = _matching_rows(path, number, line, words) or matches
        if matches:
            return Page(rows=matches, has_more=first > 1)
    return Page(rows=[], has_more=False)


def _matching_rows(path: Path, number: int, line: bytes, words: str) -> list[NumberedRow]:
    row, needle = json.loads(line), words.casefold()
    if not any(needle in text.casefold() for text in _row_texts(row)):
        return []
    return [NumberedRow(number=number, row=row, source=_source_number(path, number))]


def _numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        yield from enumerate(file, 1)


def _build_page(path: Path, lines: Iterator[tuple[int, bytes]], limit: int) -> Page:
    rows: list[NumberedRow] = []
    size = 0
    for number, line in lines:
        size += len(line)
        if len(rows) == limit or (rows and size > PAGE_BYTES):
            return Page(rows=rows, has_more=True)
        rows.append(
            NumberedRow(number=number, row=json.loads(line), source=_source_number(path, number))
        )
    return Page(rows=rows, has_more=False)


def _source_number(path: Path, number: int) -> int | None:
    try:
        with numbers_path(path).open("rb") as file:
            file.seek((number - 1) * NUMBER_BYTES)
            return int.from_bytes(file.read(NUMBER_BYTES), "little") or None
    except FileNotFoundError:
        return None


def _row_texts(value: Any) -> Iterator[str]:  # noqa: ANN401 -- any JSON value
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _row_texts(item)
        case dict():
            for item in value.values():
                yield from _row_texts(item)


def read_row(path: Path, number: int) -> dict[str, Any]:
    """Return a row of a JSON Lines file, counted from 1.

    Raises:
        LookupError: the file has fewer rows.

    """
    with path.open("rb") as file:
        file.seek(row_offset(path, number))
        line = file.readline()
    if not line:
        raise IndexError(number)
    row: dict[str, Any] = json.loads(line)
    return row


def row_offset(path: Path, number: int) -> int:
    """Return the byte offset of a row; past the last row, the end of the file.

    Raises:
        LookupError: the file has far fewer rows.

    """
    state = path.stat()
    offsets = _block_offsets(path, state.st_mtime_ns, state.st_size)
    block, rest = divmod(number - 1, _STRIDE)
    with path.open("rb") as file:
        file.seek(offsets[block])
        return offsets[block] + sum(map(len, islice(file, rest)))


@lru_cache(maxsize=16)
def _block_offsets(path: Path, _changed: int, _size: int) -> list[int]:
    offsets, offset = list[int](), 0
    with path.open("rb") as file:
        for i, line in enumerate(file):
            if i % _STRIDE == 0:
                offsets.append(offset)
            offset += len(line)
    return offsets
