"""A JSON list is cut into its rows wherever the text happens to be read in pieces."""

import io
import json
from typing import Any

import pytest

from studio.errors import InvalidError
from studio.intake.json_rows import rows_in_list
from studio.intake.problems import Code
from studio.intake.rows import Row, Unread
from tests.unit.intake.conftest import Bring

ROWS: list[dict[str, Any]] = [
    {"prompt": 'brackets ]}[{ and "quotes"', "completion": "a \\ backslash, a comma"},
    {"prompt": "ends in a backslash \\", "completion": ["nested", {"deeply": [[]]}]},
    {"prompt": "ü" * 50, "completion": "\\\\\\"},
]
GOOD = '{"prompt": "a", "completion": "b"}'


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
def test_where_the_text_is_cut_makes_no_difference(size: int) -> None:
    text = io.BytesIO(json.dumps(ROWS, indent=1).encode())

    rows = list(rows_in_list(text, 10_000, size))

    assert rows == [Row(i, row) for i, row in enumerate(ROWS, 1)]


def test_a_bad_row_does_not_hide_the_others(bring: Bring) -> None:
    result = bring(f'[{GOOD}, {{"prompt": oops}}, NaN, {GOOD},\n{GOOD}]', "rows.json")

    assert result.converted.rows == 3
    assert result.problems == [("not_json", 1, [2]), ("not_finite", 1, [3])]


@pytest.mark.parametrize(
    ("text", "rows", "problems"),
    [
        (f"[{GOOD}, {GOOD[:10]}", 1, [("cut_off", 1, [2])]),
        (f'[{GOOD}, {{"prompt": "never closed}}]', 1, [("cut_off", 1, [2])]),
        (f"[{GOOD}] [{GOOD}]", 1, [("after_end", 1, [2])]),
        (f"[{GOOD}, , {GOOD}]", 2, [("not_json", 1, [2])]),
        (f"[{GOOD}, {GOOD}, ]", 2, []),
        (f"[{GOOD} {GOOD}, {GOOD}]", 1, [("not_json", 1, [1])]),
        (f'{{"data": [{GOOD}], "total": 1}}', 1, []),
    ],
)
def test_a_list_that_is_not_whole_keeps_what_it_can(
    bring: Bring, text: str, rows: int, problems: list[tuple[str, int, list[int]]]
) -> None:
    result = bring(text, "rows.json")

    assert (result.converted.rows, result.problems) == (rows, problems)


def test_a_row_without_end_is_refused_where_it_begins(bring: Bring) -> None:
    with pytest.raises(InvalidError) as refused:
        bring(f'[{GOOD}, {{"prompt": "{"x" * 5000}', "rows.json", row_bytes=1000)

    assert refused.value.message == "Row 2 is longer than 0.000954 MB."
    assert refused.value.hint == "A quote or a bracket may have been left open there."


def test_a_row_is_numbered_by_its_place_in_the_list() -> None:
    first, second = rows_in_list(io.BytesIO(b"[1, {}]"), 1000)

    assert (first, second) == (Unread(1, Code.NOT_A_ROW), Row(2, {}))


def test_a_row_that_is_not_utf8_is_told_by_its_byte_and_the_rest_is_kept(bring: Bring) -> None:
    result = bring(f"[{GOOD}, ".encode() + b'{"prompt": "\xe9"}' + f", {GOOD}]".encode(), "a.json")

    (problem,) = result.converted.problems
    assert (result.converted.rows, problem.code, problem.rows) == (2, "not_utf8", [2])
    assert problem.message == (
        "Not text in UTF-8; save the file as UTF-8 to keep such rows (byte 0xe9 at position 13)."
    )
