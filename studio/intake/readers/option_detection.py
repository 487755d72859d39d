"""Detect how to read a file, before its rows: its encoding and table layout.

What is uncertain becomes a question with a sample.
"""

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from studio.intake.detection.name_heuristics import KNOWN_COLUMN_NAMES
from studio.intake.detection.pair_columns import PAIR_COLUMN_NAMES
from studio.intake.files.archives import DataFile, open_data_files
from studio.intake.files.encodings import (
    EncodingGuess,
    EncodingPreview,
    as_utf8,
    guess_encoding,
    normalise_newlines,
    preview_encodings,
)
from studio.intake.files.formats import Format
from studio.intake.files.limits import Limits, Meter
from studio.intake.files.packages import load_excel
from studio.intake.mapping import FileOptions, Separator
from studio.intake.readers.csv_rows import SEPARATORS, most_frequent_separator
from studio.intake.row_formats.message_formats import is_number, to_text

_MIN_REGULAR_SHARE = 0.9
"""Minimum share of lines that must have as many cells as the first."""
_UNUSUAL_SEPARATORS = ("|", "^")
_MAX_NAME_CHARS = 60
_SHOWN_CHARS = 160
_SENTENCE_ENDS = (".", "!", "\N{IDEOGRAPHIC FULL STOP}", "\N{FULLWIDTH EXCLAMATION MARK}")
_QUESTION_MARKS = ("?", "\N{FULLWIDTH QUESTION MARK}")
TEXT_FORMATS: frozenset[Format] = frozenset({"jsonl", "json", "csv", "text", "markdown"})
"""Text formats, which have an encoding."""
_TABLE_HEAD_BYTES = 2**15
"""Bytes of a table read to detect its layout."""


@dataclass(slots=True, kw_only=True)
class DetectedOptions:
    options: FileOptions
    questions: list[str] = field(default_factory=list)
    """What the user should check, as sentences."""
    is_likely: bool = True
    """Whether the guesses are probably right."""
    encodings: list[EncodingPreview] = field(default_factory=list)
    """Samples of the text in the guessed encoding, and in the next candidates."""
    sheets: list[str] = field(default_factory=list)
    """For an Excel workbook: the names of its sheets."""

    def adopt(self, layout: "DetectedOptions") -> None:
        """Adopt the options of a table's layout, with its questions."""
        self.options = layout.options
        self.questions += layout.questions
        self.is_likely = self.is_likely and layout.is_likely


def detect_options(
    path: Path, kind: Format, limits: Limits, options: FileOptions
) -> DetectedOptions:
    """Detect how to read a file; `options` that are set stay as they are.

    Raises:
        InvalidError: an archive cannot be read.
        SlowReadingError: the deadline has passed.

    """
    detected = DetectedOptions(options=options)
    if kind in TEXT_FORMATS:
        with open_data_files(path) as data_files:
            _detect_encoding(detected, data_files.files, limits)
            if kind == "csv" and data_files.files:
                _detect_table(detected, data_files.files[0], limits)
    if kind == "xlsx":
        with open_data_files(path) as data_files:
            _detect_sheet(detected, data_files.files, limits)
    return detected


def guess_file_encoding(part: DataFile, limits: Limits) -> EncodingGuess:
    with part.open(Meter(limits)) as file:
        return guess_encoding(file)


def _detect_encoding(detected: DetectedOptions, data_files: list[DataFile], limits: Limits) -> None:
    if detected.options.encoding:
        detected.encodings = _encoding_previews(data_files, limits, detected.options.encoding)
        return
    guesses = [guess_file_encoding(part, limits) for part in data_files]
    uncertain = [guess for guess in guesses if guess.is_guessed]
    if not uncertain:
        return
    if len({guess.encoding for guess in guesses}) == 1:
        detected.options = detected.options.model_copy(update={"encoding": uncertain[0].encoding})
    detected.is_likely = all(guess.is_likely for guess in uncertain)
    detected.encodings = uncertain[0].readings
    first = uncertain[0].readings[0]
    detected.questions.append(
        f"The text is not UTF-8. The encoding may be {first.label}: do these characters look "
        f"right? {first.sample}"
    )


def _detect_table(detected: DetectedOptions, part: DataFile, limits: Limits) -> None:
    name = detected.options.encoding or guess_file_encoding(part, limits).encoding
    with part.open(Meter(limits)) as file, as_utf8(file, name) as text:
        head = (
            normalise_newlines(text, part.read_head())
            .read(_TABLE_HEAD_BYTES)
            .decode(errors="replace")
        )
    lines = head.splitlines(keepends=True)
    # The last line may be cut off.
    complete = lines[:-1] if len(head) == _TABLE_HEAD_BYTES else lines
    detected.adopt(detect_layout(complete, detected.options))


def _detect_sheet(detected: DetectedOptions, data_files: list[DataFile], limits: Limits) -> None:
    load_excel()
    from studio.intake.readers import excel_rows  # noqa: PLC0415 -- heavy import

    meter = Meter(limits)
    with data_files[0].open_seekable(meter) as file, excel_rows.open_sheets(file, meter) as sheets:
        chosen = excel_rows.choose_sheet(sheets, detected.options.sheet, meter)
        rows = excel_rows.first_sheet_rows(chosen, meter)
        detected.sheets = [sheet.name for sheet in sheets]
    if len(detected.sheets) > 1 and not detected.options.sheet:
        others = ", ".join(name for name in detected.sheets if name != chosen.name)
        detected.questions.append(f"Sheet {chosen.name} is used. Is that right? Others: {others}.")
        if len(data_files) == 1:
            detected.options = detected.options.model_copy(update={"sheet": chosen.name})
    if rows and rows[0][0] > 1:
        detected.questions.append(f"Everything above row {rows[0][0]} is skipped. Is that right?")
    texts = [[to_text(cell) for cell in cells] for _, cells in rows]
    detected.adopt(detect_header(texts, detected.options))


def _encoding_previews(
    data_files: list[DataFile], limits: Limits, chosen: str
) -> list[EncodingPreview]:
    """Return samples of the text in the chosen encoding, and in others."""
    for part in data_files:
        with part.open(Meter(limits)) as file:
            previews = preview_encodings(file, chosen)
        if previews:
            return previews
    return []


def detect_layout(lines: Sequence[str], options: FileOptions) -> DetectedOptions:
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
    return DetectedOptions(
        options=table.options, questions=[*questions, *table.questions], is_likely=is_likely
    )


def detect_header(
    rows: Sequence[Sequence[str]], options: FileOptions, shown: str = ""
) -> DetectedOptions:
    """Detect whether the first row holds column names; options that are set are kept."""
    if options.header or not _starts_with_row(rows):
        return DetectedOptions(options=options)
    shown = shown or " | ".join(rows[0])[:_SHOWN_CHARS]
    question = (
        f"The first line seems to be data, not column names. Is that right? First line: {shown}"
    )
    detected = options.model_copy(update={"header": "no"})
    return DetectedOptions(options=detected, questions=[question], is_likely=False)


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
    if any(cell.lower() in KNOWN_COLUMN_NAMES | PAIR_COLUMN_NAMES for cell in first):
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
