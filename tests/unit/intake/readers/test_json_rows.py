"""A JSON list is cut into its rows wherever the text happens to be read in pieces."""

import io
import json
from typing import Any

import pytest

from studio.errors import InvalidError
from studio.intake.problems import ProblemCode
from studio.intake.raw_rows import RawRow, UnreadableRow
from studio.intake.readers.json_rows import rows_in_json_list
from tests.unit.intake.conftest import Convert

ROWS: list[dict[str, Any]] = [
    {"prompt": 'brackets ]}[{ and "quotes"', "completion": "a \\ backslash, a comma"},
    {"prompt": "ends in a backslash \\", "completion": ["nested", {"deeply": [[]]}]},
    {"prompt": "ü" * 50, "completion": "\\\\\\"},
]
GOOD = '{"prompt": "a", "completion": "b"}'


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
def test_chunk_size_does_not_affect_parsed_rows(size: int) -> None:
    text = io.BytesIO(json.dumps(ROWS, indent=1).encode())

    rows = list(rows_in_json_list(text, 10_000, size))

    assert rows == [RawRow(i, row) for i, row in enumerate(ROWS, 1)]


def test_bad_row_does_not_hide_other_rows(bring: Convert) -> None:
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
def test_incomplete_list_keeps_readable_rows(
    bring: Convert, text: str, rows: int, problems: list[tuple[str, int, list[int]]]
) -> None:
    result = bring(text, "rows.json")

    assert (result.converted.rows, result.problems) == (rows, problems)


def test_unterminated_row_error_names_its_number(bring: Convert) -> None:
    with pytest.raises(InvalidError) as refused:
        bring(f'[{GOOD}, {{"prompt": "{"x" * 5000}', "rows.json", row_bytes=1000)

    assert refused.value.message == "Row 2 is longer than 0.000954 MB."
    assert refused.value.hint == "A quote or bracket there may be unclosed."


HUGE = "9" * 5000


@pytest.mark.parametrize(
    ("row", "code", "message"),
    [
        (
            '{"prompt": "a", "completion": 1e400}',
            "not_finite",
            "NaN, Infinity and numbers beyond 1e308 cannot be stored; use null.",
        ),
        (
            '{"prompt": "a", "completion": -1E+999}',
            "not_finite",
            "NaN, Infinity and numbers beyond 1e308 cannot be stored; use null.",
        ),
        (
            '{"prompt": "a", "completion": "b", "completion": "c"}',
            "repeated_name",
            "A key appears twice, so its value is ambiguous (completion).",
        ),
        (
            '{"prompt": "a", "completion": "b", "more": [{"x": 1, "x": 1}]}',
            "repeated_name",
            "A key appears twice, so its value is ambiguous (x).",
        ),
        (
            f'{{"prompt": "a", "completion": {HUGE}}}',
            "huge_number",
            "A number has too many digits; put it in quotes.",
        ),
        (
            '{"prompt": "a", "completion": ' + "[" * 100_000 + "]" * 100_000 + "}",
            "too_deep",
            "Nested too deeply.",
        ),
        (
            '{"prompt": "a", "completion": ' + '{"a":' * 100_000 + "1" + "}" * 100_001,
            "too_deep",
            "Nested too deeply.",
        ),
    ],
)
@pytest.mark.parametrize("filename", ["rows.json", "rows.jsonl"])
def test_row_with_unusable_value_is_reported_and_skipped(
    bring: Convert, row: str, code: str, message: str, filename: str
) -> None:
    rows = [GOOD, row, GOOD]
    text = f"[{','.join(rows)}]" if filename == "rows.json" else "\n".join(rows)

    result = bring(text, filename)

    (problem,) = result.converted.problems
    assert (result.converted.rows, problem.code, problem.rows) == (2, code, [2])
    assert problem.message == message


def test_large_integer_keeps_all_digits(bring: Convert) -> None:
    result = bring('{"prompt": "a", "completion": 123456789012345678901234567890}')

    assert result.conversations[0][1]["content"] == "123456789012345678901234567890"


@pytest.mark.parametrize("end", ["\r", "\r\n"])
def test_all_line_endings_are_accepted(bring: Convert, end: str) -> None:
    result = bring(end.join([GOOD, "oops", GOOD, ""]))

    assert (result.converted.rows, [one[2] for one in result.problems]) == (2, [[2]])


def test_byte_order_mark_before_first_row_is_accepted(bring: Convert) -> None:
    assert bring(b"\xef\xbb\xbf" + GOOD.encode()).converted.problems == []


def test_row_number_is_its_position_in_list() -> None:
    first, second = rows_in_json_list(io.BytesIO(b"[1, {}]"), 1000)

    assert (first, second) == (UnreadableRow(1, ProblemCode.NOT_A_ROW), RawRow(2, {}))


def test_non_utf8_row_is_reported_by_byte(bring: Convert) -> None:
    good = GOOD.replace("a", "é").encode()
    result = bring(b"[" + good + b', {"prompt": "\xe9"}, ' + good + b"]", "a.json")

    (problem,) = result.converted.problems
    assert (result.converted.rows, problem.code, problem.rows) == (2, "not_utf8", [2])
    assert problem.message == (
        "Invalid bytes for the file's encoding; save the file as UTF-8 to keep such rows "
        "(byte 0xe9 at position 13)."
    )
