"""Every shape in every format comes out as the same conversations, and bad rows are told."""

import csv
import io
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from studio.errors import InvalidError, TooLargeError
from studio.intake.conversion.converter import SourceFile, convert_file, inspect_file
from studio.intake.files.limits import Limits
from tests.unit.intake.conftest import Convert

Rows = list[dict[str, Any]]

QUESTION, ANSWER = "Wie heißt sie?\nSay, in words.", 'She is called "Zoë", I think.'
CONVERSATION = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]

SHAPES: dict[str, tuple[str, Rows]] = {
    "alpaca": (
        "alpaca: instruction, input, output",
        [{"instruction": "Wie heißt sie?\nSay, in words.", "input": "", "output": ANSWER}] * 2,
    ),
    "prompt and completion": (
        "prompt_completion: prompt, completion",
        [{"prompt": QUESTION, "completion": ANSWER}] * 2,
    ),
    "question and answer": (
        "prompt_completion: question, answer",
        [{"question": QUESTION, "answer": ANSWER}] * 2,
    ),
    "messages": ("messages: messages", [{"messages": CONVERSATION}] * 2),
    "sharegpt": (
        "sharegpt: conversations",
        [
            {
                "conversations": [
                    {"from": "human", "value": QUESTION},
                    {"from": "gpt", "value": ANSWER},
                ]
            }
        ]
        * 2,
    ),
}


def as_jsonl(rows: Rows) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def as_json(rows: Rows) -> bytes:
    return json.dumps(rows, indent=2).encode()


def as_wrapped_json(rows: Rows) -> bytes:
    return json.dumps({"data": rows, "version": 2}).encode()


def as_csv(rows: Rows) -> bytes:
    out = io.StringIO(newline="")
    table = csv.writer(out)
    table.writerow(rows[0])
    table.writerows(
        [value if isinstance(value, str) else json.dumps(value) for value in row.values()]
        for row in rows
    )
    return out.getvalue().encode()


def as_parquet(rows: Rows) -> bytes:
    out = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows), out)
    return out.getvalue()


FORMATS: dict[str, tuple[Callable[[Rows], bytes], str]] = {
    "rows.jsonl": (as_jsonl, "jsonl"),
    "rows.json": (as_json, "json"),
    "wrapped.json": (as_wrapped_json, "json"),
    "lines.json": (as_jsonl, "jsonl"),
    "rows.csv": (as_csv, "csv"),
    "rows.parquet": (as_parquet, "parquet"),
}


@pytest.mark.parametrize("filename", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_row_shape_is_read_from_every_file_format(
    bring: Convert, shape: str, filename: str
) -> None:
    words, rows = SHAPES[shape]
    write, kind = FORMATS[filename]

    result = bring(write(rows), filename)

    mapping = result.converted.mapping
    columns = [name for names in mapping.roles.values() for name in names]
    assert f"{mapping.shape}: {', '.join(columns)}" == words
    assert (result.converted.format, result.converted.rows, result.problems) == (kind, 2, [])
    assert result.conversations == [CONVERSATION, CONVERSATION]


def test_plain_text_file_becomes_text_rows(bring: Convert, tmp_path: Path) -> None:
    result = bring("Once upon a time.\n\nThe end.\n", "story.txt")

    seen = inspect_file(SourceFile(path=tmp_path / "uploaded", filename="story.txt"), Limits())
    assert result.rows == [{"text": "Once upon a time."}, {"text": "The end."}]
    assert seen.detected.evidence == [
        "The file is plain text.",
        "2 of 2 sampled rows are usable as texts.",
    ]


def test_rows_without_question_or_answer_are_skipped_and_reported(bring: Convert) -> None:
    result = bring(
        '{"prompt": "a", "completion": "b"}\n'
        '{"prompt": "a", "completion": " "}\n'
        '{"prompt": "a"}\n'
        '{"prompt": "", "completion": "b"}\n'
    )

    assert result.converted.rows == 1
    assert result.problems == [("missing_answer", 2, [2, 3]), ("missing_question", 1, [4])]


def test_file_without_answers_is_rejected_with_line_numbers(bring: Convert) -> None:
    with pytest.raises(InvalidError) as refused:
        bring('{"prompt": "a", "completion": ""}\n' * 7)

    assert refused.value.message == (
        "None of the rows can be used. Lines 1, 2, 3, 4, 5, …: The answer is missing or empty."
    )


def test_unusable_columns_error_lists_found_and_expected_columns(bring: Convert) -> None:
    with pytest.raises(InvalidError) as refused:
        bring("height,weight\n1,2\n", "rows.csv")

    assert refused.value.message == (
        "No column can be trained on. The file has the columns height, weight."
    )
    assert refused.value.hint.startswith("Expected: instruction and output")
    assert refused.value.param == "file"


def test_problem_lists_first_twenty_rows_and_counts_all(bring: Convert) -> None:
    result = bring('{"prompt": "a", "completion": "b"}\n' + '{"prompt": "a"}\n' * 30)

    assert result.problems == [("missing_answer", 30, list(range(2, 22)))]


def test_unused_columns_are_reported(bring: Convert) -> None:
    result = bring('{"id": 1, "prompt": "a", "completion": "b", "source": "web"}\n')

    (problem,) = result.converted.problems
    assert (problem.message, problem.count) == ("These columns are not used: id, source.", 2)


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        ('{"prompt": "a", "completion": NaN}', "not_finite"),
        ('{"prompt": "a", "completion": -Infinity}', "not_finite"),
        ('{"prompt": "a", "completion": ' + "9" * 5000 + "}", "huge_number"),
        ('{"prompt": "a", "completion": ' + "[" * 100_000 + "]" * 100_000 + "}", "too_deep"),
        ('{"prompt": "a", "completion": "\\ud83d"}', "broken_character"),
        ('{"prompt": "a", "completion": "b"', "not_json"),
        ('["a", "b"]', "not_a_row"),
        ("17", "not_a_row"),
        ('{"prompt": "a", "completion": {"text": "b"}}', "not_text"),
        ('{"prompt": "a", "completion": true}', "not_text"),
    ],
)
def test_bad_row_is_reported_and_others_are_kept(bring: Convert, bad: str, code: str) -> None:
    good = '{"prompt": "a", "completion": "b"}\n'

    result = bring(good + bad + "\n" + good)

    assert result.converted.rows == 2
    assert result.problems == [(code, 1, [2])]


def test_too_long_row_is_reported_and_others_are_kept(bring: Convert) -> None:
    good = '{"prompt": "a", "completion": "b"}\n'
    long = json.dumps({"prompt": "a", "completion": "b" * 5000}) + "\n"

    result = bring(good + long + good, row_bytes=1000)

    assert (result.converted.rows, result.problems) == (2, [("too_long", 1, [2])])


def test_memory_stays_bounded_for_very_long_lines(tmp_path: Path) -> None:
    path = tmp_path / "uploaded"
    good = b'{"prompt": "a", "completion": "b"}\n'
    path.write_bytes(good + b'{"prompt": "' + b"x" * 30_000_000 + b'"}\n' + good)
    tracemalloc.start()
    try:
        limits = Limits(row_bytes=1_000_000)
        source = SourceFile(path=path, filename="rows.jsonl")
        result = convert_file(source, None, tmp_path, limits)
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert result.rows == 2
    assert peak < 8_000_000


def test_small_file_that_unpacks_too_large_is_rejected(bring: Convert) -> None:
    rows = as_parquet([{"prompt": "a" * 1000, "completion": "b"}] * 1000)

    with pytest.raises(TooLargeError):
        bring(rows, "rows.parquet", total_bytes=500_000)


@pytest.mark.parametrize(
    ("filename", "content"),
    [("rows.csv", b"prompt,completion\n"), ("rows.json", b"[ ]"), ("rows.jsonl", b"\n\n{}")],
)
def test_file_without_rows_is_rejected(bring: Convert, filename: str, content: bytes) -> None:
    with pytest.raises(InvalidError) as refused:
        bring(content, filename)

    assert refused.value.param == "file"


def test_file_of_only_invalid_rows_fails_early(bring: Convert) -> None:
    with pytest.raises(InvalidError) as refused:
        bring('{"prompt"\n' * 2000)

    assert refused.value.message == (
        "None of the rows can be used. Lines 1, 2, 3, 4, 5, …: Not valid JSON (Expecting ':' "
        "delimiter, character 11)."
    )


def test_unused_turn_keys_and_reasoning_are_reported(bring: Convert) -> None:
    answer = {"role": "assistant", "content": "b", "thinking": "c", "rating": 5}
    row = {"messages": [{"role": "user", "content": "a"}, answer], "source": "x"}

    problems = bring(as_jsonl([row])).converted.problems

    assert [(one.code, one.message.partition(":")[2]) for one in problems] == [
        ("reasoning", ""),
        ("unused_columns", " source, messages.rating."),
    ]


@pytest.mark.parametrize(
    ("broken", "sureness"), [(0, "sure"), (1, "likely"), (2, "guess"), (9, "guess")]
)
def test_unreadable_rows_lower_detection_sureness(
    tmp_path: Path, broken: int, sureness: str
) -> None:
    path = tmp_path / "rows.jsonl"
    rows = ['{"prompt": "a", "completion": "b"}'] * (10 - broken) + ['{"prompt": "a",'] * broken
    path.write_text("\n".join(rows))

    seen = inspect_file(SourceFile(path=path, filename=path.name), Limits()).detected

    words = [f"{broken} of 10 sampled rows could not be read. Not valid JSON"]
    assert seen.sureness == sureness
    assert [question[: len(words[0])] for question in seen.questions] == words * bool(broken)


def test_truncated_json_list_is_detected_as_guess(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('[{"prompt": "a", "completion": "b"}, {"prompt": "c", "comp')

    assert (
        inspect_file(SourceFile(path=path, filename=path.name), Limits()).detected.sureness
        == "guess"
    )
