"""Choose the reader of a format, and read all parts of a file in turn."""

from collections.abc import Callable, Collection, Generator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

from studio.errors import InvalidError
from studio.intake.files.archives import DataFile, error_in_member, open_data_files
from studio.intake.files.encodings import CERTAIN_ENCODINGS, ENCODINGS, as_utf8, normalise_newlines
from studio.intake.files.formats import IMAGE_EXTENSIONS, Format, extension
from studio.intake.files.limits import Limits, Meter
from studio.intake.files.packages import load_excel
from studio.intake.mapping import DETECT_ALL, FileOptions
from studio.intake.problems import ProblemCode
from studio.intake.raw_rows import FileNote, RawRow, RowStream, UnreadableRow
from studio.intake.readers.columnar_rows import rows_in_arrow, rows_in_parquet
from studio.intake.readers.csv_rows import rows_in_csv
from studio.intake.readers.json_rows import flatten_articles, rows_in_json_lines, rows_in_json_list
from studio.intake.readers.option_detection import guess_file_encoding
from studio.intake.readers.text_rows import rows_in_markdown, rows_in_text

ROW_UNITS: dict[str, str] = {
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

_TEXT_READERS: dict[Format, Callable[[BinaryIO, int], RowStream]] = {
    "jsonl": rows_in_json_lines,
    "json": rows_in_json_list,
    "csv": rows_in_csv,
    "text": rows_in_text,
    "markdown": rows_in_markdown,
}
_SHOWN_NAMES = 5


def read_rows(
    path: Path,
    kind: Format,
    limits: Limits,
    columns: Collection[str] | None = None,
    options: FileOptions = DETECT_ALL,
    *,
    with_images: bool = False,
) -> RowStream:
    """Read a file, or all files in an archive, row by row with continuous numbers.

    If the options give no encoding, it is detected for each file. `columns` lets Parquet and Arrow
    skip the other columns. `with_images` does not note that an archive has images, too.

    Raises:
        InvalidError: the file is damaged in a part that cannot be skipped.
        TooLargeError: it exceeds the limits.

    """
    meter = Meter(limits, path.stat().st_size)
    if kind in _TEXT_READERS:
        read = partial(_read_text, kind=kind, limits=limits, options=options, meter=meter)
    elif kind == "xlsx":
        read = partial(_read_workbook, limits=limits, options=options, meter=meter)
    else:
        read = partial(_read_columnar, kind=kind, limits=limits, columns=columns, meter=meter)
    for row in _read_data_files(path, read, with_images=with_images):
        meter.add_cells(len(row.values) if isinstance(row, RawRow) else 0)
        yield row


def _read_data_files(
    path: Path, read: Callable[[DataFile], RowStream], *, with_images: bool
) -> RowStream:
    with open_data_files(path) as data_files:
        ignored = data_files.ignored
        if with_images:
            ignored = [name for name in ignored if extension(name) not in IMAGE_EXTENSIONS]
        if ignored:
            more = ", …" if len(ignored) > _SHOWN_NAMES else ""
            yield FileNote(ProblemCode.UNUSED_FILES, ", ".join(ignored[:_SHOWN_NAMES]) + more)
        several = len(data_files.files) > 1
        last_number = 0
        for part in data_files.files:
            if several:
                last_number = yield from _number_member_rows(read(part), part, last_number)
            else:
                yield from read(part)


def _read_columnar(
    part: DataFile, *, kind: Format, limits: Limits, columns: Collection[str] | None, meter: Meter
) -> RowStream:
    read = rows_in_parquet if kind == "parquet" else rows_in_arrow
    with part.open_seekable(meter) as file:
        yield from read(file, limits, columns)


def _read_workbook(
    part: DataFile, *, limits: Limits, options: FileOptions, meter: Meter
) -> RowStream:
    load_excel()
    from studio.intake.readers.excel_rows import rows_in_excel  # noqa: PLC0415 -- heavy import

    with part.open_seekable(meter) as file:
        yield from rows_in_excel(file, limits.row_bytes, meter, options)


def _read_text(
    part: DataFile, *, kind: Format, limits: Limits, options: FileOptions, meter: Meter
) -> RowStream:
    name = options.encoding or guess_file_encoding(part, limits).encoding
    if name not in CERTAIN_ENCODINGS:
        yield FileNote(ProblemCode.ENCODING, ENCODINGS[name])
    with part.open(meter) as file, as_utf8(file, name) as text:
        content = text if kind == "json" else normalise_newlines(text, part.read_head())
        if kind == "csv":
            yield from rows_in_csv(content, limits.row_bytes, options)
        else:
            rows = _TEXT_READERS[kind](content, limits.row_bytes)
            yield from flatten_articles(rows) if kind == "json" else rows


def _number_member_rows(
    rows: RowStream, part: DataFile, offset: int
) -> Generator[RawRow | UnreadableRow | FileNote, None, int]:
    """Yield the rows of a file in an archive, and return the number of its last row."""
    last = offset
    try:
        for row in rows:
            if isinstance(row, FileNote):
                yield row
                continue
            last = offset + row.number
            numbered = replace(row, number=last, member=part.name, member_offset=offset)
            yield replace(numbered, split=part.split) if isinstance(numbered, RawRow) else numbered
    except InvalidError as error:
        raise error_in_member(part.name, error) from error
    return last
