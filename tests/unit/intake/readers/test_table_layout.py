"""What separates cells, and whether the first line names columns, is asked where unsure."""

import csv
import io
from pathlib import Path

import pytest

from studio.intake.conversion.converter import SourceFile, inspect_file
from studio.intake.detection.row_shapes import DetectedMapping
from studio.intake.files.limits import Limits
from studio.intake.mapping import FileOptions
from studio.intake.readers.option_detection import detect_layout
from tests.unit.intake.conftest import Convert

PAIRS = [("Where is it, please; do you know?", "It left on Monday, I think."), ("Why?", "Because")]


def seen_in(folder: Path, content: str, filename: str = "rows.csv") -> DetectedMapping:
    path = folder / "rows"
    path.write_text(content)
    return inspect_file(SourceFile(path=path, filename=filename), Limits()).detected


def written(separator: str, *, header: bool) -> str:
    out = io.StringIO()
    rows = [("prompt", "completion"), *PAIRS] if header else PAIRS
    csv.writer(out, delimiter=separator, lineterminator="\n").writerows(rows)
    return out.getvalue()


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_common_separator_and_header_are_detected_as_sure(tmp_path: Path, separator: str) -> None:
    seen = seen_in(tmp_path, written(separator, header=True))

    assert (seen.sureness, seen.questions, seen.mapping.file) == ("sure", [], FileOptions())


@pytest.mark.parametrize("separator", ["|", "^"])
def test_unusual_separator_is_detected_with_question(tmp_path: Path, separator: str) -> None:
    seen = seen_in(tmp_path, written(separator, header=True))

    assert seen.mapping.roles == {"prompt": ["prompt"], "completion": ["completion"]}
    assert (seen.sureness, seen.mapping.file.separator) == ("likely", separator)
    assert seen.questions[0].endswith(f"First line: prompt{separator}completion")


@pytest.mark.parametrize("separator", [",", ";", "\t", "|", "^"])
def test_file_without_header_keeps_all_rows(bring: Convert, separator: str) -> None:
    result = bring(written(separator, header=False), "rows.csv")

    turns = [tuple(turn["content"] for turn in row) for row in result.conversations]
    assert turns == PAIRS


def test_missing_header_question_shows_first_line(tmp_path: Path) -> None:
    seen = seen_in(tmp_path, "I like it,good\nI hate it,bad\nWell made,good\n" * 9)

    assert (seen.sureness, seen.mapping.file.header) == ("guess", "no")
    assert seen.questions[0].endswith("Is that right? First line: I like it,good")


def test_two_possible_separators_are_detected_as_guess(tmp_path: Path) -> None:
    seen = seen_in(tmp_path, "prompt|a,completion|b\nc|d,e|f\n")

    assert (seen.sureness, seen.mapping.file.separator) == ("guess", "|")


def test_chosen_layout_options_are_kept() -> None:
    chosen = FileOptions(separator=",", header="yes")

    table = detect_layout(["a|1\n", "b|2\n"], chosen)

    assert (table.options, table.questions) == (chosen, [])


@pytest.mark.parametrize(
    "lines",
    [
        ["prompt,completion\n", "a;b;c,d\n"],
        ["name,toxic?\n", "a,yes\n"],
        ["question\n", "Why, and how?\n"],
        ["prompt,completion\n", '"a\n', 'b",c\n'],
        ["only one line, no more.\n"],
        [],
    ],
)
def test_header_is_not_detected_as_data_row(lines: list[str]) -> None:
    assert detect_layout(lines, FileOptions()).options.header == ""
