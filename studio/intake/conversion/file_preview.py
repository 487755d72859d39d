"""The first rows of a file, as they are and as the rows that a mapping makes of them, for display.

A preview reads so little that it is fast whatever the size of the file.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from studio.intake.column_roles import check_mapping
from studio.intake.conversion.converter import SourceFile
from studio.intake.files.format_detection import detect_format
from studio.intake.files.limits import Limits, SlowReadingError
from studio.intake.images.image_files import WebImages, open_image_files
from studio.intake.images.image_store import PreviewImages
from studio.intake.images.row_images import RowImages
from studio.intake.mapping import Mapping
from studio.intake.problems import problem_message
from studio.intake.raw_rows import FileNote, RawRow, UnreadableRow
from studio.intake.readers import file_reader
from studio.intake.row_formats.message_formats import to_text
from studio.intake.row_formats.schema import CanonicalRow
from studio.intake.rows.pipeline import Candidate, Part, RowOutcome, build_candidates

MAX_ROWS = 500
"""Rows to preview, if there is time."""
_MAX_BYTES = 4 * 2**20
_MAX_SECONDS = 0.15
_MAX_FIND_SECONDS = 0.5
_MAX_CLASSES = 60
"""A column with more distinct values than this does not hold classes."""
_MAX_CLASS_CHARS = 200
"""A longer value is not a class."""
PREVIEW_IMAGES = "preview-images"
"""The folder of the images that a preview shows, beside the file."""
CELL_CHARS = 300
"""Characters of a value shown in a table."""


@dataclass(slots=True, kw_only=True)
class FilePreview:
    columns: list[str] = field(default_factory=list)
    rows: list[RawRow] = field(default_factory=list)
    values: dict[str, dict[str, int]] = field(default_factory=dict)
    """The distinct values of each column that has few, most frequent first, with counts."""
    is_whole: bool = True
    """Whether this is the whole file."""


def preview_file(source: SourceFile, limits: Limits, rows: int = MAX_ROWS) -> FilePreview:
    """Read the first rows of a file.

    Raises:
        InvalidError: it cannot be read at all.

    """
    preview = FilePreview()
    size, deadline = 0, time.monotonic() + _MAX_SECONDS
    for row in _read_rows(source, limits):
        if isinstance(row, TimeLimitReached):
            preview.is_whole = False
        if not isinstance(row, RawRow):
            continue
        if len(preview.rows) == rows or size > _MAX_BYTES or time.monotonic() > deadline:
            preview.is_whole = False
            break
        preview.rows.append(row)
        size += sum(len(value) for value in row.values.values() if isinstance(value, str))
    preview.columns = list(dict.fromkeys(column for row in preview.rows for column in row.values))
    preview.values = {
        column: counts for column in preview.columns if (counts := _count_classes(preview, column))
    }
    return preview


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRows:
    """Rows of a file looked up by number."""

    rows: list[RawRow]
    searched_to: int | None
    """The last row read, if time ran out before all were found."""


def find_rows(source: SourceFile, limits: Limits, numbers: Collection[int]) -> FoundRows:
    """Return the rows with these numbers, counted as in the file."""
    matches: list[RawRow] = []
    deadline, last = time.monotonic() + _MAX_FIND_SECONDS, max(numbers, default=0)
    for row in _read_rows(source, limits):
        if isinstance(row, TimeLimitReached):
            return FoundRows(rows=matches, searched_to=row.last)
        if isinstance(row, FileNote):
            continue
        if row.number > last:
            break
        if isinstance(row, RawRow) and row.number in numbers:
            matches.append(row)
        if time.monotonic() > deadline:
            return FoundRows(rows=matches, searched_to=row.number)
    return FoundRows(rows=matches, searched_to=None)


def shorten_value(value: Any, length: int = CELL_CHARS) -> str:  # noqa: ANN401 -- a value from a user's file
    """Format a value short enough for a table."""
    text = to_text(_without_bytes(value))
    return text if len(text) <= length else f"{text[:length]}…"


def _without_bytes(value: Any) -> Any:  # noqa: ANN401 -- a value from a user's file
    """Return a value whose bytes, such as those of images, are replaced by how many they are."""
    match value:
        case bytes():
            return f"({len(value):,} bytes)"
        case list():
            return [_without_bytes(item) for item in value]
        case dict():
            return {key: _without_bytes(item) for key, item in value.items()}
    return value


@dataclass(frozen=True, slots=True)
class TimeLimitReached:
    """Marks that time ran out after row `last`."""

    last: int


def _read_rows(
    source: SourceFile, limits: Limits
) -> Iterator[RawRow | UnreadableRow | FileNote | TimeLimitReached]:
    kind, last = detect_format(source.path, source.filename), 0
    try:
        for row in file_reader.read_rows(
            source.path, kind, limits.for_request(), options=source.options
        ):
            yield row
            last = last if isinstance(row, FileNote) else row.number
    except SlowReadingError:
        yield TimeLimitReached(last)


def _count_classes(preview: FilePreview, column: str) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for row in preview.rows:
        value = row.values.get(column)
        if isinstance(value, list | dict):
            return {}
        text = shorten_value(value, _MAX_CLASS_CHARS)
        if text:
            counts[text] += 1
        if len(text) > _MAX_CLASS_CHARS or len(counts) > _MAX_CLASSES:
            return {}
    return dict(counts.most_common())


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
    with open_image_files(source.path, limits.for_request()) as image_files:
        store = PreviewImages(source.path.parent / PREVIEW_IMAGES, limits.images)
        images = RowImages(image_files, WebImages(limits.images), store)
        candidates = build_candidates(
            readable, mapping, limits.row_bytes, images if mapping.media == "use" else None
        )
        outcomes: dict[int, RowOutcome] = {}
        try:
            outcomes |= ((outcome.number, outcome) for outcome in candidates)
        except SlowReadingError:
            # Their images take long to read.
            first = [row for row in first if row.number <= max(outcomes, default=0)]
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
