"""A whole file as conversations: one `{"messages": [...]}` a line, whatever it was before."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from studio.errors import InvalidError, TooLargeError
from studio.intake import readers
from studio.intake.kinds import Format, recognise
from studio.intake.problems import SENTENCES, Code, Problem, Tally
from studio.intake.rows import Limits, Row, Rows, Unread
from studio.intake.shapes import Shape, detect, first_values
from studio.intake.turns import UnusableRowError, conversation

_SAMPLE = 100
"""Rows looked at to tell the shape."""
_PATIENCE = 1000
"""If none of so many rows can be read, the others will not be tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    path: Path
    filename: str
    """As its owner calls it; the ending says which format it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    format: Format
    shape: Shape
    rows: int
    problems: list[Problem]


def convert(source: Source, target: Path, limits: Limits) -> Converted:
    """Write every usable row of a file to `target`, and say why others were left out.

    Raises:
        InvalidError: the file as a whole cannot be used, or none of its rows can.
        TooLargeError: it unpacks to more than may be kept.

    """
    kind = recognise(source.path, source.filename)
    tally = Tally()
    shape = _shape(source.path, kind, limits)
    columns = shape.mapping.values()
    found = readers.rows(source.path, kind, limits.row_bytes, columns)
    rows = _write(_usable(found, shape, limits.row_bytes, tally), target, limits.total_bytes)
    problems = list(tally)
    if not rows:
        raise _nothing_left(kind, problems)
    return Converted(
        format=kind, shape=shape, rows=rows, problems=[*problems, *_unused(shape.unused)]
    )


def _shape(path: Path, kind: Format, limits: Limits) -> Shape:
    tally = Tally()
    first = islice(readers.rows(path, kind, limits.row_bytes), _PATIENCE)
    readable = islice(_readable(first, tally), _SAMPLE)
    one = next(readable, None)
    if one is None:
        raise _nothing_left(kind, list(tally))
    return detect(first_values(row.values for row in chain([one], readable)))


def _readable(rows: Rows, tally: Tally) -> Iterator[Row]:
    for row in rows:
        match row:
            case Row():
                yield row
            case Unread(number, code, detail):
                tally.add(code, number, detail)


def _usable(rows: Rows, shape: Shape, limit: int, tally: Tally) -> Iterator[bytes]:
    """Yield each usable row as a line of JSON."""
    for row in _readable(rows, tally):
        try:
            turns = conversation(shape.name, shape.mapping, row.values)
            line = json.dumps({"messages": turns}, ensure_ascii=False).encode() + b"\n"
        except UnusableRowError as error:
            tally.add(error.code, row.number)
        except UnicodeEncodeError:
            tally.add(Code.BROKEN_CHARACTER, row.number)
        else:
            if len(line) <= limit:
                yield line
            else:
                tally.add(Code.TOO_LONG, row.number, f"the limit is {limit / 2**20:.3g} MB")


def _write(lines: Iterator[bytes], target: Path, limit: int) -> int:
    rows = size = 0
    with target.open("wb") as file:
        for line in lines:
            rows += 1
            size += len(line)
            if size > limit:
                raise TooLargeError(
                    f"The rows unpack to more than {limit / 1e9:.3g} GB.",
                    hint="Split the file, or leave rows out.",
                    param="file",
                )
            file.write(line)
    return rows


def _nothing_left(kind: Format, problems: Sequence[Problem]) -> InvalidError:
    if not problems:
        return InvalidError("The file has no rows.", hint="Choose a file with rows.", param="file")
    worst = problems[0]
    places = ", ".join(map(str, worst.rows[:5])) + (", …" if worst.count > 5 else "")  # noqa: PLR2004 -- enough to look at
    place = readers.PLACES[kind] + ("s" if worst.count > 1 else "")
    return InvalidError(
        f"No row can be used. {place.capitalize()} {places}: {worst.message}",
        hint="Mend the file and upload it again.",
        param="file",
    )


def _unused(columns: Sequence[str]) -> list[Problem]:
    if not columns:
        return []
    message = f"{SENTENCES[Code.UNUSED_COLUMNS]}: {', '.join(columns)[:500]}."
    return [Problem(code=Code.UNUSED_COLUMNS, message=message, count=len(columns), rows=[])]
