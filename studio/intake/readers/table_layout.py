"""How a table of text is laid out: what separates its cells, and whether its first line names them.

What the first lines leave open is a question. The guess is kept in the options, to be chosen again.
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
"""The share of lines that must have as many cells as the first."""
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
    """Return how the first lines of a table are laid out; what the options say is kept."""
    questions = []
    candidates = [] if options.separator else _candidate_separators(lines)
    chosen = options.separator or next(iter(candidates), "")
    is_asked = len(candidates) > 1 or (bool(candidates) and chosen in _UNUSUAL_SEPARATORS)
    shown = " ".join("".join(lines[:1]).split())[:_SHOWN_CHARS]
    if is_asked:
        questions.append(
            f"The separator of the cells seems to be {chosen} here. Is that right? "
            f"The first line is: {shown}"
        )
    is_default = SEPARATORS.get(chosen) == most_frequent_separator("".join(lines[:1]))
    separator = chosen if is_asked or options.separator or not is_default else ""
    found = options.model_copy(update={"separator": separator})
    table = detect_header(_parse_cells(lines, chosen or ","), found, shown)
    is_likely = len(candidates) < 2 and table.is_likely  # noqa: PLR2004 -- several fit
    return TableLayout(table.options, [*questions, *table.questions], is_likely)


def detect_header(
    rows: Sequence[Sequence[str]], options: FileOptions, shown: str = ""
) -> TableLayout:
    """Return whether the first of some rows names the columns; what the options say is kept."""
    if options.header or not _starts_with_row(rows):
        return TableLayout(options, [])
    shown = shown or " | ".join(rows[0])[:_SHOWN_CHARS]
    question = (
        "The first line seems to be a row, not the names of the columns. Is that right? "
        f"It is: {shown}"
    )
    return TableLayout(options.model_copy(update={"header": "no"}), [question], is_likely=False)


def _candidate_separators(lines: Sequence[str]) -> list[Separator]:
    """Return the separators that most lines agree on, the one that makes most cells first."""
    regular = [name for name in SEPARATORS if _is_regular(_parse_cells(lines, name))]
    return sorted(regular, key=lambda name: _separator_rank(_parse_cells(lines, name)))


def _separator_rank(rows: Sequence[Sequence[str]]) -> tuple[int, int]:
    # A comma within a sentence has a space behind it.
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
    if len(rows) < 2:  # noqa: PLR2004 -- nothing stands below it
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
    # A name may ask one word: "toxic?".
    is_sentence = cell.endswith(_SENTENCE_ENDS) or (
        cell.endswith(_QUESTION_MARKS) and len(cell.split()) > 1
    )
    return is_sentence or is_number(cell) or len(cell) > _MAX_NAME_CHARS
