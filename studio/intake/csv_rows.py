"""Rows of a table written with commas, semicolons or tabs. The first line names the columns."""

import csv
from collections.abc import Iterator
from pathlib import Path

from studio.intake.lines import lines, text, too_long
from studio.intake.problems import Code
from studio.intake.rows import Row, Rows, Unread

# The csv module's own limit is one for the whole process, and for a cell; `_Text` bounds the row.
csv.field_size_limit(2**31 - 1)


def rows_in_table(path: Path, limit: int) -> Rows:
    columns: list[str] = []
    for number, row in _cells(_Text(path, limit), _delimiter(path, limit)):
        if isinstance(row, str):
            yield Unread(number, Code.NOT_CSV, row)
        elif not columns:
            columns = [name.strip() or f"column {i}" for i, name in enumerate(row, 1)]
        elif len(row) > len(columns):
            yield Unread(number, Code.EXTRA_CELLS)
        elif row:
            # Cells may be left away at the end of a line.
            yield Row(number, dict.fromkeys(columns) | dict(zip(columns, row, strict=False)))


class _Text:
    """The lines of a table as text, refused when too many make one row."""

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        self.limit = limit
        self.first_line = 1
        self.size = 0

    def __iter__(self) -> Iterator[str]:
        for number, line in lines(self.path, self.limit):
            self.size += len(line) if line is not None else self.limit + 1
            if line is None or self.size > self.limit:
                place = f"The row that begins on line {self.first_line}"
                raise too_long(place, self.limit, "A quote may have been left open there.")
            yield text(line, f"line {number}")

    def next_row(self, first_line: int) -> None:
        self.first_line = first_line
        self.size = 0


def _cells(source: _Text, delimiter: str) -> Iterator[tuple[int, list[str] | str]]:
    """Yield each row of cells, or what is wrong with it, with the line it begins on."""
    cells = csv.reader(source, delimiter=delimiter, strict=True)
    while True:
        first_line = cells.line_num + 1
        source.next_row(first_line)
        try:
            yield first_line, next(cells)
        except StopIteration:
            return
        except csv.Error as error:
            yield first_line, str(error)


def _delimiter(path: Path, limit: int) -> str:
    """Return the mark that stands most often in the first line."""
    first = next((line for _, line in lines(path, limit)), None) or b""
    return max(",;\t", key=lambda mark: first.count(mark.encode()))
