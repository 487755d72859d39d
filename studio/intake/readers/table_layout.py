"""How a table of text is laid out: what separates its cells, and whether its first line names them.

What the first lines leave open is a question. The guess is kept in the options, to be chosen again.
"""

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from studio.intake.detection.name_heuristics import NAMES
from studio.intake.mapping import FileOptions, Separator
from studio.intake.readers.csv_rows import MARKS, most_frequent
from studio.intake.row_formats.cell_text import is_number

_SAME = 0.9
"""The share of lines that must have as many cells as the first."""
_UNUSUAL = ("|", "^")
_LONGEST_NAME = 60
_SHOWN = 160
_ENDS = (".", "!", "\N{IDEOGRAPHIC FULL STOP}", "\N{FULLWIDTH EXCLAMATION MARK}")
_ASKS = ("?", "\N{FULLWIDTH QUESTION MARK}")


@dataclass(frozen=True, slots=True)
class TableGuess:
    options: FileOptions
    questions: list[str]
    is_likely: bool = True


def detect_table(lines: Sequence[str], options: FileOptions) -> TableGuess:
    """Return how the first lines of a table are laid out; what the options say is kept."""
    questions = []
    candidates = [] if options.separator else _candidates(lines)
    chosen = options.separator or next(iter(candidates), "")
    is_asked = len(candidates) > 1 or (bool(candidates) and chosen in _UNUSUAL)
    shown = " ".join("".join(lines[:1]).split())[:_SHOWN]
    if is_asked:
        questions.append(
            f"The separator of the cells seems to be {chosen} here. Is that right? "
            f"The first line is: {shown}"
        )
    is_default = MARKS.get(chosen) == most_frequent("".join(lines[:1]))
    separator = chosen if is_asked or options.separator or not is_default else ""
    found = options.model_copy(update={"separator": separator})
    table = detect_header(_cells(lines, chosen or ","), found, shown)
    is_likely = len(candidates) < 2 and table.is_likely  # noqa: PLR2004 -- several fit
    return TableGuess(table.options, [*questions, *table.questions], is_likely)


def detect_header(
    rows: Sequence[Sequence[str]], options: FileOptions, shown: str = ""
) -> TableGuess:
    """Return whether the first of some rows names the columns; what the options say is kept."""
    if options.header or not _starts_with_row(rows):
        return TableGuess(options, [])
    shown = shown or " | ".join(rows[0])[:_SHOWN]
    question = (
        "The first line seems to be a row, not the names of the columns. Is that right? "
        f"It is: {shown}"
    )
    return TableGuess(options.model_copy(update={"header": "no"}), [question], is_likely=False)


def _candidates(lines: Sequence[str]) -> list[Separator]:
    """Return the separators that most lines agree on, the one that makes most cells first."""
    regular = [name for name in MARKS if _is_regular(_cells(lines, name))]
    return sorted(regular, key=lambda name: _rank(_cells(lines, name)))


def _rank(rows: Sequence[Sequence[str]]) -> tuple[int, int]:
    # A comma within a sentence has a space behind it.
    spaces = sum(cell.startswith(" ") for row in rows for cell in row[1:])
    return -len(rows[0]), spaces


def _cells(lines: Sequence[str], name: Separator) -> list[list[str]]:
    try:
        return [row for row in csv.reader(lines, delimiter=MARKS[name]) if row]
    except csv.Error:
        return []


def _is_regular(rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether nearly all rows have as many cells as the first: two or more."""
    widths = Counter(map(len, rows))
    first = len(rows[0]) if rows else 0
    return first > 1 and widths[first] >= _SAME * len(rows)


def _starts_with_row(rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether the first row holds values rather than names."""
    if len(rows) < 2:  # noqa: PLR2004 -- nothing stands below it
        return False
    first = [cell.strip() for cell in rows[0]]
    if any(cell.lower() in NAMES for cell in first):
        return False
    below = [{row[i].strip() for row in rows[1:] if i < len(row)} for i in range(len(first))]
    return any(
        _is_value(cell) or (cell and cell in others)
        for cell, others in zip(first, below, strict=True)
    )


def _is_value(cell: str) -> bool:
    # A name may ask one word: "toxic?".
    is_sentence = cell.endswith(_ENDS) or (cell.endswith(_ASKS) and len(cell.split()) > 1)
    return is_sentence or is_number(cell) or len(cell) > _LONGEST_NAME
