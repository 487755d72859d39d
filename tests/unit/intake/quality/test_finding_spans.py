"""Where in a row something was found, and what is said of it."""

from typing import Any

import pytest

from studio.intake.quality.row_checks import LONG_BYTES, SHOWN_CHARS, locate_finding


def talk(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def pair(question: str, answer: str) -> dict[str, Any]:
    return talk(("user", question), ("assistant", answer))


def found(code: str, row: dict[str, Any]) -> list[list[str]]:
    """Return what is marked in each text of a row."""
    return [[one.text for one in text if one.is_match] for text in locate_finding(code, row).texts]


@pytest.mark.parametrize(
    ("code", "row", "marked", "why"),
    [
        (
            "control_characters",
            pair("Ring\x07", "a\u200bb"),
            [["U+0007"], ["U+200B"]],
            "It contains U+0007, U+200B (zero width space).",
        ),
        ("misread", pair("cafÃ© et thÃ©", "Oui"), [["Ã©", "Ã©"], []], "It contains Ã©, 2 times."),
        (
            "lost_characters",
            {"text": "Fa\N{REPLACEMENT CHARACTER}ade"},
            [["\N{REPLACEMENT CHARACTER}"]],
            "It contains \N{REPLACEMENT CHARACTER}.",
        ),
        (
            "other_script",
            pair("ok: Как дела?", "Хорошо"),
            [["Как дела?"], ["Хорошо"]],
            "Most letters are Cyrillic.",
        ),
        ("says_nothing", pair("Well?", "..."), [[], []], ""),
    ],
)
def test_finding_is_marked_with_reason(
    code: str, row: dict[str, Any], marked: list[list[str]], why: str
) -> None:
    assert (found(code, row), locate_finding(code, row).reason) == (marked, why)


def test_spans_include_marked_and_unmarked_text() -> None:
    row = pair("one Ã© two Ã© three", "four")
    texts = ["".join(one.text for one in text) for text in locate_finding("misread", row).texts]
    assert texts == ["one Ã© two Ã© three", "four"]


def test_long_text_is_shortened_around_finding() -> None:
    row = {"text": "a" * 3 * SHOWN_CHARS + "\x07" + "b" * SHOWN_CHARS}
    (text,) = locate_finding("control_characters", row).texts
    assert [one.text[:26] for one in text] == [
        "(11,700 characters before)"[:26],
        "a" * 26,
        "U+0007",
        "b" * 26,
        " (and 301 more)",
    ]


def test_text_beyond_token_limit_is_marked() -> None:
    row = pair("é" * 48, "word " * (LONG_BYTES // 5) + "the end")
    question, answer = found("over_long", row)
    assert (question, answer[0].endswith("the end"), len(answer[0])) == ([], True, 96 + 7 - 1)
    assert locate_finding("over_long", row).reason == (
        "About 1,049 tokens: the marked part is beyond the first 1,024."
    )


@pytest.mark.parametrize(
    ("roles", "turns", "why"),
    [
        (
            ("user", "user", "assistant"),
            (1,),
            "Turn 2 has the same role as the turn before it: user.",
        ),
        (
            ("assistant",),
            (0,),
            "The first turn has role assistant, but its role should be user.",
        ),
        (
            ("user", "system", "assistant"),
            (1,),
            "Turn 2 is a system turn, which must come first.",
        ),
    ],
)
def test_each_turn_out_of_order_is_marked(
    roles: tuple[str, ...], turns: tuple[int, ...], why: str
) -> None:
    seen = locate_finding("out_of_order", talk(*((role, role) for role in roles)))
    assert (seen.turns, seen.reason) == (turns, why)


def test_rejected_answer_is_marked() -> None:
    row = pair("Why?", "So.") | {
        "messages": [{"role": "user", "content": "Why?"}],
        "chosen": [{"role": "assistant", "content": "So."}],
        "rejected": [{"role": "assistant", "content": "So\x07"}],
    }
    assert found("control_characters", row) == [[], [], ["U+0007"]]


def test_reason_names_row_that_is_repeated() -> None:
    assert locate_finding("duplicates", pair("a", "b"), 12).reason == "Identical to row 12."
    assert locate_finding("overlap", pair("a", "b"), 3).reason == "Asks the same as training row 3."
