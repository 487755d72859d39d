"""What the answers of a dataset are: labels, numbers or free text."""

from typing import Any

import pytest

from studio.intake.quality.answer_facts import (
    MAX_LABELS,
    AnswerCounter,
    AnswerFacts,
    label_problem,
    number_problem,
    tag_problem,
)

Row = dict[str, Any]


def row(answer: str, **targets: Any) -> Row:  # noqa: ANN401 -- labels or numbers
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}]
    return {"messages": turns, **targets}


def facts(*rows: Row) -> AnswerFacts:
    counter = AnswerCounter()
    for one in rows:
        counter.add(one)
    return counter.facts()


def test_labels_are_counted_by_row_most_frequent_first() -> None:
    found = facts(row("b"), row(" a "), row("a"), row("a, b", labels=["a", "b"]))

    assert found.labels == {"a": 3, "b": 2}
    assert found.has_several
    assert label_problem(found) == ""


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([row(f"answer {i}") for i in range(8)], "too many of them are different"),
        ([row("x" * 201), row("y"), row("y"), row("y")], "too many of them are different"),
        ([row(f"{i % (MAX_LABELS + 1)}") for i in range(4000)], "too many of them are different"),
        ([row("a"), row("a")], 'All rows have the label "a".'),
        ([{"text": "A text."}], "have no labels"),
    ],
    ids=["all different", "long", "thousands", "one", "texts"],
)
def test_answers_that_are_no_labels_are_named(rows: list[Row], problem: str) -> None:
    assert problem in label_problem(facts(*rows))


def test_one_label_that_some_rows_lack_can_be_learned() -> None:
    assert label_problem(facts(row("a", labels=["a"]), row("none", labels=[]))) == ""


def test_numbers_are_recognised_with_and_without_names() -> None:
    found = facts(row("1.5"), row("a: 1, b: 2", numbers={"a": 1.0, "b": 2.0}))

    assert number_problem(found) == ""
    assert found.targets == ("a", "b")
    assert number_problem(facts(row("1"), row("x"))) == "1 of 2 answers are no numbers."
    assert number_problem(facts(row("x"))) == "The answers of this dataset are no numbers."


def test_number_that_never_changes_cannot_be_learned() -> None:
    same = facts(*(row("?", numbers={"a": i, "b": 2.0}) for i in range(4)))

    assert number_problem(same) == 'A number is the same in all rows: "b".'
    assert number_problem(facts(row("3"), row("3"))) == (
        "A number is the same in all rows: the answer."
    )


def test_numbers_far_from_all_others_are_found() -> None:
    counter = AnswerCounter()
    for i in range(40):
        counter.add(row("?", numbers={"a": float(i), "b": 1000.0 if i == 30 else i % 5}))

    assert counter.outliers() == {"b": [31]}


@pytest.mark.parametrize(
    ("tags", "problem"),
    [
        ([["O"], ["O", "O"]], "No word of these texts is marked"),
        ([["B-x"], ["B-x"]], 'All words have the tag "B-x".'),
        ([[f"B-{number}"] for number in range(2001)], "more than 1,000 different labels"),
    ],
)
def test_tags_without_a_difference_are_refused(tags: list[list[str]], problem: str) -> None:
    assert problem in tag_problem(facts(*({"text": "", "words": [], "tags": one} for one in tags)))


def test_tags_are_counted() -> None:
    found = facts({"text": "a b", "words": ["a", "b"], "tags": ["O", "B-x"]})

    assert (found.rows, found.tags, found.labels) == (1, {"O": 1, "B-x": 1}, {})
    assert tag_problem(found) == ""
