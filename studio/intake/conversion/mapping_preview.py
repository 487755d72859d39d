"""Preview of a mapping: the first rows of a file beside the rows they become."""

from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from studio.intake.column_roles import check_mapping
from studio.intake.conversion.converter import SourceFile
from studio.intake.conversion.file_preview import shorten_value
from studio.intake.files.format_detection import detect_format
from studio.intake.files.limits import Limits, SlowReadingError
from studio.intake.mapping import Mapping
from studio.intake.problems import problem_message
from studio.intake.raw_rows import FileNote, RawRow, UnreadableRow
from studio.intake.readers import file_reader
from studio.intake.row_formats.schema import CanonicalRow
from studio.intake.rows.filters import Part
from studio.intake.rows.pipeline import Candidate, RowOutcome, build_candidates

_THREAD_FACTOR = 25
"""Factor of rows to read for threads, whose rows may lie far apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewedRow:
    number: int
    place: str
    """Where the user finds it; in an archive, "12 of b.jsonl"."""
    values: dict[str, str]
    """The values as they are in the file, truncated."""
    row: CanonicalRow | None
    problem: str | None
    """Why it would be left out, as a sentence."""
    part: Part | None
    """Where it would go."""


def preview_rows(
    source: SourceFile, mapping: Mapping, limits: Limits, rows: int = 20
) -> list[PreviewedRow]:
    """Return the first rows of a file and what the mapping makes of them.

    No sample is drawn here, and duplicates are only detected among these rows.

    Raises:
        InvalidError: the file cannot be read, or the mapping is incomplete.

    """
    check_mapping(mapping, mapping.columns)
    kind = detect_format(source.path, source.filename)
    count = rows * _THREAD_FACTOR if mapping.shape == "thread" else rows
    raw_rows = file_reader.read_rows(source.path, kind, limits.for_request(), options=mapping.file)
    first: list[RawRow | UnreadableRow] = []
    # Rows beyond the time limit are not shown; slow files are reported on conversion.
    with suppress(SlowReadingError):
        first.extend(islice((row for row in raw_rows if not isinstance(row, FileNote)), count))
    readable = [row for row in first if isinstance(row, RawRow)]
    outcomes = {
        outcome.number: outcome for outcome in build_candidates(readable, mapping, limits.row_bytes)
    }
    return [_preview_row(row, outcomes) for row in first[:rows]]


def _preview_row(row: RawRow | UnreadableRow, outcomes: dict[int, RowOutcome]) -> PreviewedRow:
    if isinstance(row, UnreadableRow):
        return _left_out_row(row, {}, problem_message(row.code, row.detail))
    values = {column: shorten_value(value) for column, value in row.values.items()}
    match outcomes.get(row.number):
        case Candidate(number, part, canonical):
            return PreviewedRow(
                number=number,
                place=row.place,
                values=values,
                row=canonical,
                problem=None,
                part=part,
            )
        case None:
            return _left_out_row(
                row, values, "It is part of a conversation that ends in a later row."
            )
        case left_out:
            return _left_out_row(row, values, left_out.message)


def _left_out_row(
    row: RawRow | UnreadableRow, values: dict[str, str], problem: str
) -> PreviewedRow:
    return PreviewedRow(
        number=row.number, place=row.place, values=values, row=None, problem=problem, part=None
    )
