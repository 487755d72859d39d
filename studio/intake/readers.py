"""Which reader reads which format, and every part of a file one after the other."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

from studio.errors import InvalidError
from studio.intake.archives import within
from studio.intake.arrow_rows import rows_in_arrow
from studio.intake.csv_rows import rows_in_table
from studio.intake.encodings import as_utf8, encoding
from studio.intake.formats import Format
from studio.intake.json_rows import rows_in_list, rows_on_lines
from studio.intake.markdown_rows import rows_in_markdown
from studio.intake.parquet_rows import rows_in_parquet
from studio.intake.parts import Part, parts
from studio.intake.problems import Code
from studio.intake.rows import Limits, Note, Row, Rows, Unread
from studio.intake.text_rows import rows_in_text
from studio.intake.unpacking import Meter

PLACES: dict[str, str] = {
    "jsonl": "line",
    "json": "row",
    "csv": "line",
    "parquet": "row",
    "arrow": "row",
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
_PERHAPS_WINDOWS: set[Format] = {"csv", "text", "markdown"}
"""What programs of Windows write in an encoding of their own. JSON is UTF-8 by its standard."""
_NAMED = 5


def rows(
    path: Path,
    kind: Format,
    limit: int,
    columns: Collection[str] | None = None,
    *,
    total: int = Limits().total_bytes,
    members: Collection[str] | None = None,
) -> Rows:
    """Read a file row by row, or all files in an archive, or only the members named.

    `limit` is of a row, `total` of all that is unpacked. Naming the columns spares Parquet and
    Arrow the reading of others.

    Raises:
        InvalidError: what cannot be stepped over is damaged.
        TooLargeError: more than `total` would be unpacked.

    """
    meter = Meter(total)
    with parts(path, members) as found:
        if found.aside:
            more = ", …" if len(found.aside) > _NAMED else ""
            yield Note(Code.UNUSED_FILES, ", ".join(found.aside[:_NAMED]) + more)
        read = partial(_rows, kind=kind, limit=limit, columns=columns, meter=meter)
        several = len(found.parts) > 1
        for part in found.parts:
            yield from _of_member(read(part), part.name) if several else read(part)


def _rows(
    part: Part, *, kind: Format, limit: int, columns: Collection[str] | None, meter: Meter
) -> Rows:
    if kind == "parquet":
        with part.seekable(meter) as file:
            yield from rows_in_parquet(file, limit, columns)
    elif kind == "arrow":
        with part.seekable(meter) as file:
            yield from rows_in_arrow(file, limit, columns)
    else:
        name = encoding(part.head(), windows=kind in _PERHAPS_WINDOWS)
        if name == "cp1252":
            yield Note(Code.READ_AS_WINDOWS)
        with part.open(meter) as file, as_utf8(file, name) as text:
            yield from _OF_TEXT[kind](text, limit)


def _of_member(found: Rows, name: str) -> Iterator[Row | Unread | Note]:
    try:
        for one in found:
            yield one if isinstance(one, Note) else replace(one, member=name)
    except InvalidError as error:
        raise within(name, error) from error
