"""The findings of a dataset version, stored beside its rows with all row numbers.

A page lists the first rows of a finding; excluding them needs all.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from studio import files
from studio.intake.files.read_progress import ProgressCallback
from studio.intake.quality.dataset_checks import Finding, check_dataset
from studio.intake.rows.filters import Part
from studio.intake.rows.writer import NUMBER_BYTES, ROW_FILES, numbers_path

FINDINGS_FILE = "findings.json"
SHOWN_ROWS = 20
"""Rows of a finding that are reported; the file has up to `dataset_checks.MAX_LISTED_ROWS`."""


def check_and_store(
    folder: Path, on_progress: ProgressCallback = lambda _share: None, *, languages: bool = True
) -> list[Finding]:
    """Check the rows in a folder, store the findings there, and return them shortened.

    See `check_dataset` for `languages`.
    """
    validation = folder / ROW_FILES["validation"]
    validation_file = validation if validation.exists() else None
    findings = check_dataset(
        folder / ROW_FILES["train"], validation_file, on_progress, languages=languages
    )
    rows = {
        _finding_key(finding.code, finding.part): [finding.rows, finding.twins]
        for finding in findings
    }
    files.replace_text(folder / FINDINGS_FILE, json.dumps(rows))
    on_progress(1)
    return [replace(finding, rows=finding.rows[:SHOWN_ROWS], twins=[]) for finding in findings]


def rows_with_finding(folder: Path, code: str, part: Part) -> dict[int, int | None]:
    """Return the numbers of a finding's rows within their part, with the row each repeats, if any.

    At most `dataset_checks.MAX_LISTED_ROWS` are returned.
    """
    try:
        stored: dict[str, list[list[int]]] = json.loads(
            (folder / FINDINGS_FILE).read_text(encoding="utf-8")
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
