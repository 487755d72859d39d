"""Answers beside each other, word by word."""

import pytest

from studio.services import answers
from studio.services.answers import Piece, Written


def written(text: str) -> Written:
    return Written(prompt="Q?", wanted="R", answer=text)


@pytest.mark.parametrize(
    ("text", "against", "pieces"),
    [
        ("a b", "a b", [Piece("same", "a b")]),
        ("a  b", "a b", [Piece("same", "a  b")]),
        ("a b c", "a c", [Piece("same", "a "), Piece("added", "b "), Piece("same", "c")]),
        ("a", "a b", [Piece("same", "a"), Piece("gone", "b")]),
        ("", "a", [Piece("gone", "a")]),
        ("", "", []),
    ],
)
def test_answers_are_cut_into_what_is_shared_and_what_is_not(
    text: str, against: str, pieces: list[Piece]
) -> None:
    assert answers.compared(text, against) == pieces


def test_only_prompts_with_other_words_are_rows() -> None:
    reference = {0: written("yes"), 1: written("no")}
    rows = answers.differing(reference, {"bf16": {0: written("yes"), 1: written("maybe")}})

    assert [row.reference for row in rows] == ["no"]


def test_only_prompts_that_both_answered_are_counted() -> None:
    one, other = {0: written("a"), 1: written("b")}, {0: written("c")}

    assert answers.count(one, other) == 1
