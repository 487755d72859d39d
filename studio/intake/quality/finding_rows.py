"""The rows of findings, stored beside the rows of a dataset."""

import json
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from pathlib import Path

from studio import files
from studio.intake.rows.pipeline import NUMBER_BYTES, ROW_FILES, Part, numbers_path

_FILE = "findings.json"


def store(folder: Path, rows: Mapping[tuple[str, Part], list[list[int]]]) -> None:
    """Store the rows of findings by code and part, each with the rows that they repeat."""
    named = {_finding_key(code, part): found for (code, part), found in rows.items()}
    files.replace_text(folder / _FILE, json.dumps(named))


def rows_with_finding(folder: Path, code: str, part: Part) -> dict[int, int | None]:
    """Return the numbers of a finding's rows within their part, with the row each repeats, if any.

    At most `MAX_LISTED_ROWS` are returned.
    """
    try:
        stored: dict[str, list[list[int]]] = json.loads(
            (folder / _FILE).read_text(encoding="utf-8")
        )
    except FileNotFoundError:
        return {}
    rows, twins = stored.get(_finding_key(code, part), ([], []))
    return dict(zip_longest(rows, twins))


def original_row_numbers(folder: Path, part: Part, rows: Iterable[int]) -> list[int]:
    """Return the numbers of these rows in the original file, as far as they are known."""
    try:
        numbers = numbers_path(folder / ROW_FILES[part]).read_bytes()
    except FileNotFoundError:
        return []
    starts = ((row - 1) * NUMBER_BYTES for row in rows)
    originals = (
        int.from_bytes(numbers[start : start + NUMBER_BYTES], "little") for start in starts
    )
    return sorted({number for number in originals if number})


def _finding_key(code: str, part: Part) -> str:
    return f"{part}/{code}"
