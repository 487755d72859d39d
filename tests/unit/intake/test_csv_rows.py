"""Tables as spreadsheets write them, and as people break them."""

import pytest

from studio.errors import InvalidError
from tests.unit.intake.conftest import Bring


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_columns_are_parted_by_whatever_the_first_line_uses(bring: Bring, mark: str) -> None:
    result = bring(f"prompt{mark}completion\na{mark}b\n", "rows.csv")

    assert [turn["content"] for turn in result.conversations[0]] == ["a", "b"]


def test_a_cell_may_have_lines_of_its_own(bring: Bring) -> None:
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
def test_a_bad_row_is_told_by_its_line(bring: Bring, row: str, code: str) -> None:
    result = bring(f"prompt,completion\na,b\n{row}", "rows.csv")

    assert (result.converted.rows, result.problems) == (1, [(code, 1, [3])])


def test_a_quote_left_open_is_refused_where_it_begins(bring: Bring) -> None:
    with pytest.raises(InvalidError) as refused:
        bring('prompt,completion\na,b\n"a,b\n' + "a,b\n" * 1000, "rows.csv", row_bytes=2000)

    assert refused.value.message == "The row that begins on line 3 is longer than 0.00191 MB."


def test_a_cell_longer_than_the_csv_module_allows_by_default_is_read(bring: Bring) -> None:
    result = bring(f"prompt,completion\na,{'b' * 200_000}\n", "rows.csv")

    assert len(result.conversations[0][1]["content"]) == 200_000
