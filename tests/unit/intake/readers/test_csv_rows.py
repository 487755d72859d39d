"""Tables as spreadsheets write them, and as people break them."""

import pytest

from studio.errors import InvalidError
from studio.intake.files.limits import MAX_COLUMNS
from studio.intake.mapping import Mapping
from tests.unit.intake.conftest import Convert, Result


def read(result: Result) -> list[list[str]]:
    return [[turn["content"] for turn in turns] for turns in result.conversations]


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_separator_is_detected_from_first_line(bring: Convert, mark: str) -> None:
    result = bring(f"prompt{mark}completion\na{mark}b\n", "rows.csv")

    assert [turn["content"] for turn in result.conversations[0]] == ["a", "b"]


def test_multiline_cell_counts_towards_line_numbers(bring: Convert) -> None:
    result = bring('prompt,completion\n"two\nlines",b\n,no question\n', "rows.csv")

    assert [turn["content"] for turn in result.conversations[0]] == ["two\nlines", "b"]
    assert result.problems == [("missing_question", 1, [4])]


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ("a", "missing_answer"),
        ("a,b,c", "extra_cells"),
        ('a,"b" c', "not_csv"),
        ('a,"never closed', "not_csv"),
    ],
)
def test_bad_row_is_reported_by_line(bring: Convert, row: str, code: str) -> None:
    result = bring(f"prompt,completion\na,b\n{row}", "rows.csv")

    assert (result.converted.rows, result.problems) == (1, [(code, 1, [3])])


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_all_line_endings_are_accepted(bring: Convert, end: str) -> None:
    result = bring(end.join(["prompt,completion", "a,b", "c,", "d,e", ""]), "rows.csv")

    assert (read(result), result.problems) == (
        [["a", "b"], ["d", "e"]],
        [("missing_answer", 1, [3])],
    )


def test_multiline_cell_keeps_its_line_endings(bring: Convert) -> None:
    result = bring('prompt,completion\r\n"two\r\nlines","b\nc"\r\n', "rows.csv")

    assert read(result) == [["two\r\nlines", "b\nc"]]


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"])
def test_byte_order_mark_is_not_part_of_column_name(bring: Convert, mark: bytes) -> None:
    encoding = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}.get(mark, "utf-8")

    result = bring(mark + "prompt,completion\r\né,ü\r\n".encode(encoding), "rows.csv")

    assert (read(result), result.problems) == ([["é", "ü"]], [])


def test_duplicate_columns_are_renamed_and_reported(bring: Convert) -> None:
    result = bring("prompt,completion,completion,prompt\na,b,c,d\n", "rows.csv")

    renamed, unused = result.converted.problems
    assert read(result) == [["a", "b"]]
    assert renamed.message == "Columns with the same name were numbered (completion 2, prompt 2)."
    assert unused.message == "These columns are not used: completion 2, prompt 2."


def test_renamed_column_avoids_existing_names(bring: Convert) -> None:
    result = bring("prompt,completion,completion 2,completion\na,b,c,d\n", "rows.csv")

    assert result.converted.problems[0].message.endswith("(completion 3).")


def test_many_duplicate_columns_are_renamed(bring: Convert) -> None:
    columns = ",".join(["prompt", "completion", *["x"] * (MAX_COLUMNS - 2)])

    result = bring(f"{columns}\na,b\n", "rows.csv")

    assert read(result) == [["a", "b"]]


def test_non_finite_scores_are_reported_by_line(bring: Convert) -> None:
    table = "text,score\none,1.5\ntwo,1e400\nthree,2\nfour,-Infinity\n"
    roles = {"text": ["text"], "number": ["score"]}

    result = bring(table, "rows.csv", Mapping(shape="regression", roles=roles))

    assert read(result) == [["one", "1.5"], ["three", "2"]]
    assert result.problems == [("not_a_number", 2, [3, 5])]


def test_unclosed_quote_error_names_starting_line(bring: Convert) -> None:
    with pytest.raises(InvalidError) as refused:
        bring('prompt,completion\na,b\n"a,b\n' + "a,b\n" * 1000, "rows.csv", row_bytes=2000)

    assert refused.value.message == "The row that starts on line 3 is longer than 0.00191 MB."


def test_cell_longer_than_csv_module_default_is_read(bring: Convert) -> None:
    result = bring(f"prompt,completion\na,{'b' * 200_000}\n", "rows.csv")

    assert len(result.conversations[0][1]["content"]) == 200_000
