"""Read the rows of a CSV table. The first line holds column names unless options say otherwise."""

import csv
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import BinaryIO

from studio.errors import InvalidError
from studio.intake.mapping import DETECT_ALL, FileOptions, Separator
from studio.intake.problems import ProblemCode
from studio.intake.raw_rows import RawRow, RowStream, UnreadableRow
from studio.intake.readers.column_names import ColumnNames, unique_names
from studio.intake.readers.text_rows import not_utf8_row, read_lines, too_long_error

# The csv module's limit applies to the whole process, and to a cell; `_CsvLines` limits the row.
csv.field_size_limit(2**31 - 1)

SEPARATORS: dict[Separator, str] = {",": ",", ";": ";", "tab": "\t", "|": "|", "^": "^"}
"""The separator between two cells, by its name in the options."""


def rows_in_csv(file: BinaryIO, limit: int, options: FileOptions = DETECT_ALL) -> RowStream:
    """Yield the rows of a table.

    Raises:
        InvalidError: a row is too long, so that the start of the next is unknown; or the first
            line is not valid CSV.

    """
    columns: list[str] = []
    text = _CsvLines(file, limit, SEPARATORS.get(options.separator, ""))
    for number, row in _read_cells(text):
        if not columns:
            names = _column_names(row, is_header=options.header != "no")
            columns = names.unique
            yield from names.notes()
            if options.header != "no":
                continue
        if text.unreadable is not None:
            yield replace(text.unreadable, number=number)
        elif isinstance(row, str):
            yield UnreadableRow(number, ProblemCode.NOT_CSV, row)
        elif len(row) > len(columns):
            yield UnreadableRow(number, ProblemCode.EXTRA_CELLS)
        elif row:
            # Cells may be omitted at the end of a line.
            yield RawRow(number, dict.fromkeys(columns) | dict(zip(columns, row, strict=False)))


def most_frequent_separator(line: str) -> str:
    """Return the most frequent separator in a line."""
    return max(SEPARATORS.values(), key=line.count)


def _column_names(row: list[str] | str, *, is_header: bool) -> ColumnNames:
    if isinstance(row, str):
        raise InvalidError(
            f"The first line, which names the columns, is not valid CSV ({row}).",
            hint="Fix it and upload the file again.",
            param="file",
        )
    return unique_names(
        [(name.strip() if is_header else "") or f"column {i}" for i, name in enumerate(row, 1)]
    )


class _CsvLines:
    """Decodes the lines of a table; raises an error if a row gets too long."""

    def __init__(self, file: BinaryIO, limit: int, delimiter: str) -> None:
        self.limit = limit
        self.first_line = 1
        self.size = 0
        self.unreadable: UnreadableRow | None = None
        """The decoding error of the current row."""
        lines = read_lines(file, limit)
        first = next(lines, (1, b""))
        self.lines = chain([first], lines)
        self.delimiter = delimiter or most_frequent_separator(
            (first[1] or b"").decode(errors="replace")
        )

    def __iter__(self) -> Iterator[str]:
        for number, line in self.lines:
            self.size += len(line) if line is not None else self.limit + 1
            if line is None or self.size > self.limit:
                place = f"The row that starts on line {self.first_line}"
                raise too_long_error(place, self.limit, "A quote there may be unclosed.")
            yield self._decode(number, line)

    def next_row(self, first_line: int) -> None:
        self.first_line = first_line
        self.size = 0
        self.unreadable = None

    def _decode(self, number: int, line: bytes) -> str:
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            self.unreadable = self.unreadable or not_utf8_row(number, error)
            return line.decode(errors="replace")


def _read_cells(source: _CsvLines) -> Iterator[tuple[int, list[str] | str]]:
    """Yield each row's first line, and its cells or what is wrong with it."""
    cells = csv.reader(source, delimiter=source.delimiter, strict=True)
    while True:
        first_line = cells.line_num + 1
        source.next_row(first_line)
        try:
            yield first_line, next(cells)
        except StopIteration:
            return
        except csv.Error as error:
            yield first_line, str(error)
