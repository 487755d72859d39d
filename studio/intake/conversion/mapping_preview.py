"""The first rows of a file beside what they become, while a person still chooses how."""

from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from studio.intake.column_roles import check
from studio.intake.conversion.converter import Source
from studio.intake.files.format_detection import recognise
from studio.intake.files.limits import Limits, SlowReadingError
from studio.intake.mapping import Mapping
from studio.intake.problems import sentence
from studio.intake.raw_rows import Note, Row, Unread
from studio.intake.readers import file_reader
from studio.intake.row_formats.cell_text import plain
from studio.intake.row_formats.schema import CanonicalRow
from studio.intake.rows.filters import Part
from studio.intake.rows.pipeline import Candidate, Outcome, candidates

SHOWN = 300
"""Characters of a value that are shown."""
_SEVERAL = 25
"""Times as many rows are read of threads, whose rows lie apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Previewed:
    number: int
    place: str
    """Where a person finds it: in an archive, "12 of b.jsonl"."""
    values: dict[str, str]
    """As they stand in the file, cut short."""
    row: CanonicalRow | None
    problem: str | None
    """Why it would be left out, in a sentence."""
    part: Part | None
    """Where it would go."""


def preview(source: Source, mapping: Mapping, limits: Limits, rows: int = 20) -> list[Previewed]:
    """Return the first rows of a file and what the mapping makes of them.

    A sample is not drawn here, and duplicates are only looked for among these rows.

    Raises:
        InvalidError: the file cannot be read, or the mapping does not say enough.

    """
    check(mapping, mapping.columns)
    kind = recognise(source.path, source.filename)
    count = rows * _SEVERAL if mapping.shape == "thread" else rows
    found = file_reader.rows(source.path, kind, limits.at_once(), options=mapping.file)
    first: list[Row | Unread] = []
    # What there is no time for is not shown; that a file is slow is said when it is read.
    with suppress(SlowReadingError):
        first.extend(islice((row for row in found if not isinstance(row, Note)), count))
    readable = [row for row in first if isinstance(row, Row)]
    made = {one.number: one for one in candidates(readable, mapping, limits.row_bytes)}
    return [_previewed(row, made) for row in first[:rows]]


def _previewed(row: Row | Unread, made: dict[int, Outcome]) -> Previewed:
    if isinstance(row, Unread):
        return _left_out(row, {}, sentence(row.code, row.detail))
    values = {column: shortened(plain(value)) for column, value in row.values.items()}
    match made.get(row.number):
        case Candidate(number, part, canonical):
            return Previewed(
                number=number,
                place=row.place,
                values=values,
                row=canonical,
                problem=None,
                part=part,
            )
        case None:
            return _left_out(row, values, "It is part of a conversation that a later row ends.")
        case left_out:
            return _left_out(row, values, left_out.sentence)


def _left_out(row: Row | Unread, values: dict[str, str], problem: str) -> Previewed:
    return Previewed(
        number=row.number, place=row.place, values=values, row=None, problem=problem, part=None
    )


def shortened(written: str) -> str:
    return written if len(written) <= SHOWN else f"{written[:SHOWN]}…"
