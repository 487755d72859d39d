"""Which answers are correct, and which are broken."""

import pytest

from studio.evaluation import answer_rules


@pytest.mark.parametrize(
    ("answer", "expected", "verdict"),
    [
        ("Ravi", "Ravi", True),
        (" Ravi\n", "Ravi", True),
        ("two  words\nand more", "two words and more", True),
        ("Cafe\u0301", "Caf\u00e9", True),
        ("ravi", "Ravi", False),
        ("Ravi.", "Ravi", False),
        ("Grace.", "Ravi", False),
        ("", "Ravi", False),
        ("Ravi", "", None),
        ("", " \n", None),
    ],
)
def test_answer_is_correct_when_it_matches_expected_text(
    answer: str,
    expected: str,
    verdict: bool | None,  # noqa: FBT001 -- a case
) -> None:
    assert answer_rules.is_correct(answer, expected) is verdict


@pytest.mark.parametrize(
    ("answer", "is_degenerate"),
    [
        ("", True),
        (" \n", True),
        ("the cat the cat the cat the cat the cat the ca", True),
        ("It is so.\n" * 5, True),
        ("no" * 40, True),
        ("很好" * 10, True),
        ("Paris.", False),
        ("ha ha ha ha ha", False),
        ("1, 2, 3, 4, 5, 6, 7, 8, 9, 10", False),
        ("- a\n- b\n- c\n- d\n- e\n- f\n- g", False),
        ("so " * 20 + "and then it ends well", False),
    ],
)
def test_empty_and_looping_answers_are_degenerate(answer: str, *, is_degenerate: bool) -> None:
    assert answer_rules.is_degenerate(answer) == is_degenerate
