"""Answers beside each other, word by word."""

import pytest

from studio.services.samples import sample_diff
from studio.services.samples.sample_diff import DiffPiece, SampleAnswer


def written(text: str) -> SampleAnswer:
    return SampleAnswer(prompt="Q?", wanted="R", answer=text)


@pytest.mark.parametrize(
    ("text", "against", "pieces"),
    [
        ("a b", "a b", [DiffPiece("same", "a b")]),
        ("a  b", "a b", [DiffPiece("same", "a  b")]),
        (
            "a b c",
            "a c",
            [DiffPiece("same", "a "), DiffPiece("added", "b "), DiffPiece("same", "c")],
        ),
        ("a", "a b", [DiffPiece("same", "a"), DiffPiece("gone", "b")]),
        ("", "a", [DiffPiece("gone", "a")]),
        (
            "我要茶",
            "我要水",
            [DiffPiece("same", "我要"), DiffPiece("gone", "水"), DiffPiece("added", "茶")],
        ),
        ("", "", []),
    ],
)
def test_diff_splits_answers_into_shared_and_changed_words(
    text: str, against: str, pieces: list[DiffPiece]
) -> None:
    assert sample_diff.diff_words(text, against) == pieces


def test_only_answers_with_expected_text_are_scored() -> None:
    assert sample_diff.count_correct([True, False, None, True]) == sample_diff.AnswerScore(2, 3)


def test_only_differing_answers_become_rows() -> None:
    reference = {0: written("yes"), 1: written("no")}
    rows = sample_diff.diff_answers(reference, {"bf16": {0: written("yes"), 1: written("maybe")}})

    assert [row.reference for row in rows] == ["no"]


def test_only_prompts_answered_by_both_are_counted() -> None:
    one, other = {0: written("a"), 1: written("b")}, {0: written("c")}

    assert sample_diff.count_differing(one, other) == 1


def test_common_words_of_long_answers_are_diffed_as_same() -> None:
    text = "the cat and the dog " * 60
    pieces = sample_diff.diff_words(text + "end", text)

    assert [(piece.kind, piece.text) for piece in pieces if piece.kind != "same"] == [
        ("added", "end")
    ]


@pytest.mark.parametrize(
    ("length", "before", "after"),
    [
        (99, ["one two ", "three four"], []),
        (8, ["one two "], ["three four"]),
        (15, ["one two ", "three "], ["four"]),
        (3, [], ["one two ", "three four"]),
    ],
)
def test_long_answer_is_cut_between_words(length: int, before: list[str], after: list[str]) -> None:
    pieces = [DiffPiece("same", "one two "), DiffPiece("added", "three four")]

    parts = sample_diff.split_pieces(pieces, length)
    assert [[piece.text for piece in part] for part in parts] == [before, after]


@pytest.mark.parametrize(
    ("text", "against", "is_rewritten"),
    [("one two", "one six", False), ("one two", "three four", True), ("a", "a", False)],
)
def test_nearly_unrelated_answers_count_as_rewritten(
    text: str, against: str, *, is_rewritten: bool
) -> None:
    assert sample_diff.is_rewritten(sample_diff.diff_words(text, against)) == is_rewritten
