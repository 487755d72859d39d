"""The findings of a version, beside its rows: looked for once, and kept with all their numbers.

A page names the first rows of a finding; whoever leaves them out needs all of them.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from studio.intake.files.read_progress import ProgressCallback
from studio.intake.quality.dataset_checks import Finding, check_dataset
from studio.intake.rows.filters import Part
from studio.intake.rows.writer import NUMBER_BYTES, ROW_FILES, numbers_path

FINDINGS_FILE = "findings.json"
SHOWN_ROWS = 20
"""How many rows of a finding are told; the file has up to `checks.KEPT`."""


def check_and_store(
    folder: Path, told: ProgressCallback = lambda _share: None, *, languages: bool = True
) -> list[Finding]:
    """Look through the rows in a folder, and note there what was found. Return it, shortened.

    As to `languages` see `check_dataset`.
    """
    validation = folder / ROW_FILES["validation"]
    held = validation if validation.exists() else None
    found = check_dataset(folder / ROW_FILES["train"], held, told, languages=languages)
    rows = {_finding_key(one.code, one.part): [one.rows, one.twins] for one in found}
    whole = folder / f"{FINDINGS_FILE}.new"
    whole.write_text(json.dumps(rows), encoding="utf-8")
    whole.replace(folder / FINDINGS_FILE)
    told(1)
    return [replace(one, rows=one.rows[:SHOWN_ROWS], twins=[]) for one in found]


def rows_with_finding(folder: Path, code: str, part: Part) -> dict[int, int | None]:
    """Return the numbers of a finding's rows within their part, with what each repeats, if any.

    They are at most `checks.KEPT`.
    """
    try:
        known: dict[str, list[list[int]]] = json.loads(
            (folder / FINDINGS_FILE).read_text(encoding="utf-8")
        )
    except FileNotFoundError:
        return {}
    rows, twins = known.get(_finding_key(code, part), ([], []))
    return dict(zip_longest(rows, twins))


def original_row_numbers(folder: Path, part: Part, rows: Iterable[int]) -> list[int]:
    """Return which rows of the original these are; those whose number is not known are missing."""
    try:
        numbers = numbers_path(folder / ROW_FILES[part]).read_bytes()
    except FileNotFoundError:
        return []
    starts = ((row - 1) * NUMBER_BYTES for row in rows)
    found = (int.from_bytes(numbers[at : at + NUMBER_BYTES], "little") for at in starts)
    return sorted({number for number in found if number})


def _finding_key(code: str, part: Part) -> str:
    return f"{part}/{code}"
