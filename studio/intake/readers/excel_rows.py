"""Read the rows of one sheet of an Excel workbook, as a stream.

https://ecma-international.org/publications-and-standards/standards/ecma-376/ (SpreadsheetML). Each
cell has its saved value; a formula, its last result. A cell with an error, such as #N/A, is empty.
"""

import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from itertools import islice
from typing import IO, Any, BinaryIO

from openpyxl.cell.text import Text
from openpyxl.reader.excel import ExcelReader
from openpyxl.utils.escape import unescape
from openpyxl.worksheet._reader import WorkSheetParser
from openpyxl.xml.constants import SHARED_STRINGS, SHEET_MAIN_NS
from openpyxl.xml.functions import iterparse

from studio.errors import InvalidError
from studio.intake.files.limits import Meter, check_column_count
from studio.intake.mapping import DETECT_ALL, FileOptions
from studio.intake.raw_rows import RawRow, RowStream
from studio.intake.readers.column_names import unique_names
from studio.intake.readers.text_rows import too_long_row

MAX_SHEET_ROWS = 1_048_576
"""Excel's own limit."""
HEADER_SEARCH_ROWS = 50
"""Rows searched for the column names."""
_WORKBOOK_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    ArithmeticError,
    SyntaxError,
    EOFError,
    OSError,
    NotImplementedError,
)
"""What openpyxl raises for damaged workbooks."""
_MAX_PART_BYTES = 2**25
"""Limit for parts that are read at once: styles and lists of sheets, not cells and texts."""
_STRICT_NAMESPACE = b"http://purl.oclc.org/ooxml/spreadsheetml/main"
"""The namespace of a workbook saved as Strict Open XML."""
_STRING_TAG = f"{{{SHEET_MAIN_NS}}}si"

CellValues = list[Any]


class Sheet:
    def __init__(self, reader: "_WorkbookReader", name: str, path: str) -> None:
        self.name = name
        self._reader, self._place = reader, path

    def rows(self, meter: Meter) -> Iterator[tuple[int, CellValues]]:
        """Yield the number and cells of each row that is not empty."""
        last_number = 0
        with self._reader.archive.open_timed(self._place) as source:
            for number, cells in self._reader.build_parser(source).parse():
                meter.check_time()
                if not last_number < number <= MAX_SHEET_ROWS:
                    raise ValueError(number)
                last_number = number
                filled = {
                    cell["column"]: value for cell in cells if (value := _cell_value(cell)) != ""
                }
                if filled:
                    check_column_count(max(filled))
                    yield number, [filled.get(i) for i in range(1, max(filled) + 1)]


@contextmanager
def open_sheets(file: BinaryIO, meter: Meter) -> Iterator[list[Sheet]]:
    """Open the visible sheets of a workbook in order, or all if none is visible.

    Raises:
        InvalidError: it is damaged, or not a workbook; also raised within the context for a row.
        TooLargeError: it unpacks to more than the limit.

    """
    try:
        reader = _WorkbookReader(_TimedArchive(file, meter))
        with reader.archive:
            reader.read()
            yield reader.sheets
    except _WORKBOOK_ERRORS as error:
        raise InvalidError(
            "The Excel workbook cannot be fully read: it is damaged, or of an unusual type.",
            hint="Open it in Excel or LibreOffice and save it again as .xlsx or CSV.",
            param="file",
        ) from error


def choose_sheet(sheets: Sequence[Sheet], name: str, meter: Meter) -> Sheet:
    """Return the sheet with this name, or the first that has rows.

    Raises:
        InvalidError: no sheet has this name, or none has cells.

    """
    names = ", ".join(sheet.name for sheet in sheets)
    if name:
        chosen = next((sheet for sheet in sheets if sheet.name == name), None)
        if chosen is None:
            message = f"Sheet not found: {name}. Available sheets: {names}."
            raise InvalidError(message, param="sheet")
        return chosen
    filled = (sheet for sheet in sheets if next(sheet.rows(meter), None))
    chosen = next(filled, next(iter(sheets), None))
    if chosen is None:
        raise InvalidError("The workbook has no sheet with cells.", param="file")
    return chosen


def first_sheet_rows(sheet: Sheet, meter: Meter) -> list[tuple[int, CellValues]]:
    """Return the first rows of a sheet, without a title above the column names."""
    rows = list(islice(sheet.rows(meter), HEADER_SEARCH_ROWS))
    widest = max((_count_filled(cells) for _, cells in rows), default=0)
    start = next((i for i, (_, cells) in enumerate(rows) if _count_filled(cells) * 2 >= widest), 0)
    return rows[start:]


def rows_in_excel(
    file: BinaryIO, limit: int, meter: Meter, options: FileOptions = DETECT_ALL
) -> RowStream:
    """Yield the rows of the chosen or first sheet, numbered as in Excel.

    Raises:
        InvalidError: see `open_sheets` and `choose_sheet`.
        TooLargeError: it has too many columns, or unpacks to more than the limit.

    """
    with open_sheets(file, meter) as sheets:
        sheet = choose_sheet(sheets, options.sheet, meter)
        first = first_sheet_rows(sheet, meter)
        if not first:
            return
        start, header = first[0]
        is_header = options.header != "no"
        header_names = [
            str(name).strip() if is_header and name is not None else "" for name in header
        ]
        names = unique_names([name or f"column {i}" for i, name in enumerate(header_names, 1)])
        yield from names.notes()
        for number, cells in sheet.rows(meter):
            if number < start or (number == start and is_header):
                continue
            if len(cells) > len(names.unique):
                extra = range(len(names.unique) + 1, len(cells) + 1)
                names = unique_names([*names.unique, *(f"column {i}" for i in extra)])
            if sum(len(cell) for cell in cells if isinstance(cell, str)) > limit:
                yield too_long_row(number, limit)
                continue
            yield RawRow(
                number, dict.fromkeys(names.unique) | dict(zip(names.unique, cells, strict=False))
            )


def _count_filled(cells: CellValues) -> int:
    return sum(cell is not None for cell in cells)


def _cell_value(cell: dict[str, Any]) -> Any:  # noqa: ANN401 -- a value from a user's file
    """Return a cell's value; "" if it is empty or has an error."""
    match cell["value"]:
        case _ if cell["data_type"] == "e":
            return ""
        case None:
            return ""
        case str() as text:
            return unescape(text)
        case datetime() as moment if moment.time() == time():
            # A date is stored as midnight of its day.
            return moment.date()
        case timedelta() as duration:
            return str(duration)
        case value:
            return value


class _TimedArchive(zipfile.ZipFile):
    """Refuses to read large parts at once, and stops at the deadline."""

    def __init__(self, file: BinaryIO, meter: Meter) -> None:
        super().__init__(file)
        self._meter = meter
        meter.add_bytes(sum(info.file_size for info in self.infolist()))

    def read(self, name: str | zipfile.ZipInfo, pwd: bytes | None = None) -> bytes:
        info = name if isinstance(name, zipfile.ZipInfo) else self.getinfo(name)
        if info.file_size > _MAX_PART_BYTES:
            raise ValueError(info.file_size)
        content = super().read(name, pwd)
        if _STRICT_NAMESPACE in content:
            # openpyxl would find no rows in it and raise no error.
            raise ValueError(_STRICT_NAMESPACE)
        return content

    @contextmanager
    def open_timed(self, name: str) -> Iterator["_TimedSource"]:
        with self.open(name) as source:
            yield _TimedSource(source, self._meter)


@dataclass(frozen=True, slots=True)
class _TimedSource:
    source: IO[bytes]
    meter: Meter

    def read(self, size: int) -> bytes:
        self.meter.check_time()
        return self.source.read(size)


class _WorkbookReader(ExcelReader):  # type: ignore[misc] # openpyxl is untyped
    """Reads only those parts of a workbook that its rows need."""

    def __init__(self, archive: _TimedArchive) -> None:
        super().__init__(archive.fp, read_only=True, data_only=True, keep_links=False)
        self.archive: _TimedArchive = archive
        self.sheets: list[Sheet] = []

    def read_strings(self) -> None:
        part = self.package.find(SHARED_STRINGS)
        if part is not None:
            self.shared_strings = _SharedStrings(self.archive.open_timed(part.PartName[1:]))

    def read_worksheets(self) -> None:
        sheets = [
            (sheet.state == "visible", Sheet(self, sheet.name, relation.target))
            for sheet, relation in self.parser.find_sheets()
            if "chartsheet" not in relation.Type
        ]
        self.sheets = [sheet for is_shown, sheet in sheets if is_shown] or [
            hidden for _, hidden in sheets
        ]

    def build_parser(self, source: _TimedSource) -> WorkSheetParser:
        return WorkSheetParser(
            source,
            self.shared_strings,
            data_only=True,
            epoch=self.wb.epoch,
            date_formats=self.wb._date_formats,  # noqa: SLF001 -- no public API
            timedelta_formats=self.wb._timedelta_formats,  # noqa: SLF001 -- no public API
        )


class _SharedStrings:
    """The shared strings of a workbook, loaded lazily in the order of their first use."""

    def __init__(self, source: AbstractContextManager[_TimedSource]) -> None:
        self._coming = _read_shared_strings(source)
        self._read: list[str] = []

    def __getitem__(self, index: int) -> str:
        while index >= len(self._read):
            self._read.append(next(self._coming))
        return self._read[index]


def _read_shared_strings(opened: AbstractContextManager[_TimedSource]) -> Iterator[str]:
    with opened as source:
        for _, node in iterparse(source):
            if node.tag == _STRING_TAG:
                yield Text.from_tree(node).content
                node.clear()
    # A cell refers to a missing string.
    raise LookupError
