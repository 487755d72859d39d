"""The first rows of a file as they stand in it, and what their columns hold: for a person to see.

A glance reads so little that it takes no time, whatever the size of the file.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from studio.intake.conversion.converter import Source
from studio.intake.files.format_detection import recognise
from studio.intake.files.limits import Limits, SlowReadingError
from studio.intake.raw_rows import Note, Row, Unread
from studio.intake.readers import file_reader
from studio.intake.row_formats.cell_text import plain

ROWS = 500
"""As many rows are looked at, if there is time."""
_BYTES = 4 * 2**20
_SECONDS = 0.15
_FIND_SECONDS = 0.5
_VALUES = 60
"""A column with more different values than this is no list of classes."""
_LONGEST = 200
"""A value longer than this is no class."""
SHOWN = 300
"""Characters of a value that are shown in a table."""


@dataclass(slots=True, kw_only=True)
class Glance:
    columns: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    values: dict[str, dict[str, int]] = field(default_factory=dict)
    """The different values of each column that has few, most frequent first, with counts."""
    is_whole: bool = True
    """Whether this is the whole file."""


def look(source: Source, limits: Limits, rows: int = ROWS) -> Glance:
    """Look at the first rows of a file.

    Raises:
        InvalidError: it cannot be read at all.

    """
    seen = Glance()
    size, until = 0, time.monotonic() + _SECONDS
    for row in _rows(source, limits):
        if isinstance(row, OutOfTime):
            seen.is_whole = False
        if not isinstance(row, Row):
            continue
        if len(seen.rows) == rows or size > _BYTES or time.monotonic() > until:
            seen.is_whole = False
            break
        seen.rows.append(row)
        size += sum(len(value) for value in row.values.values() if isinstance(value, str))
    seen.columns = list(dict.fromkeys(column for row in seen.rows for column in row.values))
    seen.values = {column: found for column in seen.columns if (found := _classes(seen, column))}
    return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """Rows of a file, found by their numbers."""

    rows: list[Row]
    looked_to: int | None
    """The last row that was looked at, if there was no time to look for all of them."""


def find(source: Source, limits: Limits, numbers: Collection[int]) -> Sought:
    """Return the rows with these numbers, as the file counts them."""
    found: list[Row] = []
    until, last = time.monotonic() + _FIND_SECONDS, max(numbers, default=0)
    for row in _rows(source, limits):
        if isinstance(row, OutOfTime):
            return Sought(rows=found, looked_to=row.last)
        if isinstance(row, Note):
            continue
        if row.number > last:
            break
        if isinstance(row, Row) and row.number in numbers:
            found.append(row)
        if time.monotonic() > until:
            return Sought(rows=found, looked_to=row.number)
    return Sought(rows=found, looked_to=None)


def shown(value: Any, length: int = SHOWN) -> str:  # noqa: ANN401 -- a value from a user's file
    """Write a value short enough for a table."""
    text = plain(value)
    return text if len(text) <= length else f"{text[:length]}…"


@dataclass(frozen=True, slots=True)
class OutOfTime:
    """Stands behind the last row that there was time for."""

    last: int


def _rows(source: Source, limits: Limits) -> Iterator[Row | Unread | Note | OutOfTime]:
    kind, last = recognise(source.path, source.filename), 0
    try:
        for row in file_reader.rows(source.path, kind, limits.at_once(), options=source.options):
            yield row
            last = last if isinstance(row, Note) else row.number
    except SlowReadingError:
        yield OutOfTime(last)


def _classes(seen: Glance, column: str) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for row in seen.rows:
        value = row.values.get(column)
        if isinstance(value, list | dict):
            return {}
        text = shown(value, _LONGEST)
        if text:
            counts[text] += 1
        if len(text) > _LONGEST or len(counts) > _VALUES:
            return {}
    return dict(counts.most_common())
