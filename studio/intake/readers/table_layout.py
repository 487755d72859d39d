"""Detect the layout of a CSV table: its separator, and whether the first line is a header.

What stays uncertain becomes a question. The guess is put in the options, so that the user can
change it.
"""

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from studio.intake.detection.name_heuristics import KNOWN_COLUMN_NAMES
from studio.intake.mapping import FileOptions, Separator
from studio.intake.readers.csv_rows import SEPARATORS, most_frequent_separator
from studio.intake.row_formats.cell_text import is_number

_MIN_REGULAR_SHARE = 0.9
"""Minimum share of lines that must have as many cells as the first."""
_UNUSUAL_SEPARATORS = ("|", "^")
_MAX_NAME_CHARS = 60
_SHOWN_CHARS = 160
_SENTENCE_ENDS = (".", "!", "\N{IDEOGRAPHIC FULL STOP}", "\N{FULLWIDTH EXCLAMATION MARK}")
_QUESTION_MARKS = ("?", "\N{FULLWIDTH QUESTION MARK}")


@dataclass(frozen=True, slots=True)
class TableLayout:
    options: FileOptions
    questions: list[str]
    is_likely: bool = True


def detect_layout(lines: Sequence[str], options: FileOptions) -> TableLayout:
    """Detect the layout from the first lines of a table; options that are set are kept."""
    questions = []
    candidates = [] if options.separator else _candidate_separators(lines)
    chosen = options.separator or next(iter(candidates), "")
    is_asked = len(candidates) > 1 or (bool(candidates) and chosen in _UNUSUAL_SEPARATORS)
    shown = " ".join("".join(lines[:1]).split())[:_SHOWN_CHARS]
    if is_asked:
        questions.append(f"The separator seems to be {chosen}. Is that right? First line: {shown}")
    is_default = SEPARATORS.get(chosen) == most_frequent_separator("".join(lines[:1]))
    separator = chosen if is_asked or options.separator or not is_default else ""
    detected = options.model_copy(update={"separator": separator})
    table = detect_header(_parse_cells(lines, chosen or ","), detected, shown)
    is_likely = len(candidates) < 2 and table.is_likely  # noqa: PLR2004 -- several fit
    return TableLayout(table.options, [*questions, *table.questions], is_likely)


def detect_header(
    rows: Sequence[Sequence[str]], options: FileOptions, shown: str = ""
) -> TableLayout:
    """Detect whether the first row holds column names; options that are set are kept."""
    if options.header or not _starts_with_row(rows):
        return TableLayout(options, [])
    shown = shown or " | ".join(rows[0])[:_SHOWN_CHARS]
    question = (
        f"The first line seems to be data, not column names. Is that right? First line: {shown}"
    )
    return TableLayout(options.model_copy(update={"header": "no"}), [question], is_likely=False)


def _candidate_separators(lines: Sequence[str]) -> list[Separator]:
    """Return the separators that fit most lines, the one with the most cells first."""
    regular = [name for name in SEPARATORS if _is_regular(_parse_cells(lines, name))]
    return sorted(regular, key=lambda name: _separator_rank(_parse_cells(lines, name)))


def _separator_rank(rows: Sequence[Sequence[str]]) -> tuple[int, int]:
    # A comma within a sentence is followed by a space.
    spaces = sum(cell.startswith(" ") for row in rows for cell in row[1:])
    return -len(rows[0]), spaces


def _parse_cells(lines: Sequence[str], name: Separator) -> list[list[str]]:
    try:
        return [row for row in csv.reader(lines, delimiter=SEPARATORS[name]) if row]
    except csv.Error:
        return []


def _is_regular(rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether nearly all rows have as many cells as the first: two or more."""
    widths = Counter(map(len, rows))
    first = len(rows[0]) if rows else 0
    return first > 1 and widths[first] >= _MIN_REGULAR_SHARE * len(rows)


def _starts_with_row(rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether the first row holds values rather than names."""
    if len(rows) < 2:  # noqa: PLR2004 -- no row below it
        return False
    first = [cell.strip() for cell in rows[0]]
    if any(cell.lower() in KNOWN_COLUMN_NAMES for cell in first):
        return False
    below = [{row[i].strip() for row in rows[1:] if i < len(row)} for i in range(len(first))]
    return any(
        _is_value(cell) or (cell and cell in others)
        for cell, others in zip(first, below, strict=True)
    )


def _is_value(cell: str) -> bool:
    # A column name may be one word with a question mark: "toxic?".
    is_sentence = cell.endswith(_SENTENCE_ENDS) or (
        cell.endswith(_QUESTION_MARKS) and len(cell.split()) > 1
    )
    return is_sentence or is_number(cell) or len(cell) > _MAX_NAME_CHARS
