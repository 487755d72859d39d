"""Which reader reads which format, and every part of a file one after the other."""

from collections.abc import Callable, Collection, Generator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

from studio.errors import InvalidError
from studio.intake.files.archives import within
from studio.intake.files.data_files import Part, parts
from studio.intake.files.encodings import CERTAIN, ENCODINGS, as_utf8, with_newlines
from studio.intake.files.formats import Format
from studio.intake.files.limits import Limits, Meter
from studio.intake.mapping import DETECT, FileOptions
from studio.intake.problems import Code
from studio.intake.raw_rows import Note, Row, Rows, Unread
from studio.intake.readers.arrow_rows import rows_in_arrow
from studio.intake.readers.csv_rows import rows_in_table
from studio.intake.readers.json_rows import rows_in_list, rows_on_lines
from studio.intake.readers.markdown_rows import rows_in_markdown
from studio.intake.readers.option_detection import guess_encoding
from studio.intake.readers.parquet_rows import rows_in_parquet
from studio.intake.readers.squad_rows import flatten_articles
from studio.intake.readers.text_rows import rows_in_text

PLACES: dict[str, str] = {
    "jsonl": "line",
    "json": "row",
    "csv": "line",
    "parquet": "row",
    "arrow": "row",
    "xlsx": "row",
    "text": "line",
    "markdown": "line",
}
"""What the number of a row counts."""

_OF_TEXT: dict[Format, Callable[[BinaryIO, int], Rows]] = {
    "jsonl": rows_on_lines,
    "json": rows_in_list,
    "csv": rows_in_table,
    "text": rows_in_text,
    "markdown": rows_in_markdown,
}
_NAMED = 5


def rows(
    path: Path,
    kind: Format,
    limits: Limits,
    columns: Collection[str] | None = None,
    options: FileOptions = DETECT,
) -> Rows:
    """Read a file row by row, or all files in an archive, numbered through.

    An encoding that the options leave empty is detected for each file. Naming the columns spares
    Parquet and Arrow the reading of others.

    Raises:
        InvalidError: what cannot be stepped over is damaged.
        TooLargeError: it costs more than the limits allow.

    """
    meter = Meter(limits, path.stat().st_size)
    if kind in _OF_TEXT:
        read = partial(_rows_of_text, kind=kind, limits=limits, options=options, meter=meter)
    elif kind == "xlsx":
        read = partial(_rows_of_workbook, limits=limits, options=options, meter=meter)
    else:
        read = partial(_rows, kind=kind, limits=limits, columns=columns, meter=meter)
    for row in _rows_in_parts(path, read):
        meter.add_cells(len(row.values) if isinstance(row, Row) else 0)
        yield row


def _rows_in_parts(path: Path, read: Callable[[Part], Rows]) -> Rows:
    with parts(path) as found:
        if found.aside:
            more = ", …" if len(found.aside) > _NAMED else ""
            yield Note(Code.UNUSED_FILES, ", ".join(found.aside[:_NAMED]) + more)
        several = len(found.parts) > 1
        before = 0
        for part in found.parts:
            if several:
                before = yield from _of_member(read(part), part, before)
            else:
                yield from read(part)


def _rows(
    part: Part, *, kind: Format, limits: Limits, columns: Collection[str] | None, meter: Meter
) -> Rows:
    read = rows_in_parquet if kind == "parquet" else rows_in_arrow
    with part.seekable(meter) as file:
        yield from read(file, limits, columns)


def _rows_of_workbook(part: Part, *, limits: Limits, options: FileOptions, meter: Meter) -> Rows:
    from studio.intake.readers.excel_rows import rows_in_workbook  # noqa: PLC0415 -- heavy import

    with part.seekable(meter) as file:
        yield from rows_in_workbook(file, limits.row_bytes, meter, options)


def _rows_of_text(
    part: Part, *, kind: Format, limits: Limits, options: FileOptions, meter: Meter
) -> Rows:
    name = options.encoding or guess_encoding(part, limits).encoding
    if name not in CERTAIN:
        yield Note(Code.ENCODING, ENCODINGS[name])
    with part.open(meter) as file, as_utf8(file, name) as text:
        whole = text if kind == "json" else with_newlines(text, part.head())
        if kind == "csv":
            yield from rows_in_table(whole, limits.row_bytes, options)
        else:
            found = _OF_TEXT[kind](whole, limits.row_bytes)
            yield from flatten_articles(found) if kind == "json" else found


def _of_member(found: Rows, part: Part, before: int) -> Generator[Row | Unread | Note, None, int]:
    """Yield what is in a file of an archive, and return the number of its last row."""
    last = before
    try:
        for one in found:
            if isinstance(one, Note):
                yield one
                continue
            last = before + one.number
            told = replace(one, number=last, member=part.name, before=before)
            yield replace(told, side=part.side) if isinstance(told, Row) else told
    except InvalidError as error:
        raise within(part.name, error) from error
    return last
