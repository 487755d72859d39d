"""Every case of an attack on a studio stands in docs/security.md, with a test that exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
CASES = [f"S{number:02}" for number in range(1, 76)]
ROW = re.compile(r"^\| (S\d\d) \| (.+?) \| (.*?) \|$", re.MULTILINE)
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_every_case_has_one_line() -> None:
    assert [number for number, _held, _by in ROW.findall(TEXT)] == CASES


def test_every_case_has_test_or_reason_for_none() -> None:
    without = [
        number
        for number, held, by in ROW.findall(TEXT)
        if not NAMED.search(by) and not held.startswith("does not apply: ")
    ]

    assert without == []


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED.findall(TEXT))))
def test_named_test_exists(file: str, name: str) -> None:
    written = (ROOT / file).read_text(encoding="utf-8")

    assert re.search(rf"^def {name}\(", written, re.MULTILINE)
