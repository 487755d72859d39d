"""Which column holds the expected answer, and what it is best compared by."""

import pytest

from studio.graders.items import GradedRow
from studio.graders.templates import Sample, fill
from studio.services.graders import columns


def rows(*answers: object, column: str = "answer") -> list[GradedRow]:
    return [
        GradedRow(number=number, messages=[], item={column: answer, "messages": []})
        for number, answer in enumerate(answers, 1)
    ]


@pytest.mark.parametrize(
    ("known", "best"),
    [
        (["question", "Answer", "id"], "Answer"),
        (["reference_answer"], "reference_answer"),
        (["answer", "solution", "final_answer"], "answer"),
        (["a", "b"], "b"),
        ([], "answer"),
    ],
)
def test_column_of_the_expected_answer_is_found_by_name(known: list[str], best: str) -> None:
    assert columns.guess_answer(known) == best


@pytest.mark.parametrize("name", ["answer", "the answer", "ответ", "a-b", "1st"])
def test_template_of_a_column_is_read_back_and_finds_its_value(name: str) -> None:
    template = columns.template(name)

    assert columns.read_template(template) == name
    assert fill(template, Sample(""), {name: "Paris"}) == "Paris"


@pytest.mark.parametrize("text", ["Paris", "{{ item.a }}!", "{{ item.a.b }}", "{{ sample.x }}", ""])
def test_other_texts_are_no_columns(text: str) -> None:
    assert columns.read_template(text) is None


@pytest.mark.parametrize(
    ("answers", "purpose"),
    [
        (["So 3 + 4 = 7.\n#### 7", "#### 1,007"], "number"),
        ([7, -2.5], "number"),
        (['{"a": 1}', "[1]"], "json"),
        (["Paris", "New York"], "exact"),
        (["Paris", "It is a long answer, with many words."], "similar"),
        (["", ""], "length"),
        ([], "length"),
    ],
)
def test_purpose_follows_the_expected_answers(answers: list[object], purpose: str) -> None:
    assert columns.guess_purpose(rows(*answers)) == purpose


def test_prompt_is_no_column() -> None:
    assert columns.list_columns(rows("a") + rows("b", column="other")) == ["answer", "other"]
