"""Detect how to read a file, before its rows: its encoding and table layout.

What is uncertain becomes a question with a sample.
"""

from dataclasses import dataclass, field
from pathlib import Path

from studio.intake.files.data_files import DataFile, open_data_files
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
from studio.intake.mapping import FileOptions
from studio.intake.readers.table_layout import detect_header, detect_layout
from studio.intake.row_formats.cell_text import to_text

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
    table = detect_layout(lines[:-1] if len(head) == _TABLE_HEAD_BYTES else lines, detected.options)
    detected.options = table.options
    detected.questions += table.questions
    detected.is_likely = detected.is_likely and table.is_likely


def _detect_sheet(detected: DetectedOptions, data_files: list[DataFile], limits: Limits) -> None:
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
    header = detect_header(
        [[to_text(cell) for cell in cells] for _, cells in rows], detected.options
    )
    detected.options = header.options
    detected.questions += header.questions
    detected.is_likely = detected.is_likely and header.is_likely


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
