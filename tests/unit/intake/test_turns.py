"""Rows as conversations, with whatever roles and parts they come in."""

from typing import Any, cast

import pytest

from studio.intake.canonical import canonical
from studio.intake.mapping import Mapping, ShapeName
from studio.intake.problems import Code
from studio.intake.turns import ConversationRow, Turn, UnusableRowError


def messages(*turns: Any) -> list[tuple[str, str]]:  # noqa: ANN401 -- also what is no turn
    read = conversation("messages", {"messages": "messages"}, {"messages": list(turns)})
    return [(turn["role"], turn["content"]) for turn in read]


def conversation(shape: ShapeName, roles: dict[str, str], row: dict[str, Any]) -> list[Turn]:
    mapping = Mapping(shape=shape, roles={role: [column] for role, column in roles.items()})
    return cast("ConversationRow", canonical(mapping, row))["messages"]


def said(role: str, content: Any) -> dict[str, Any]:  # noqa: ANN401 -- also what is no text
    return {"role": role, "content": content}


def test_roles_of_other_studios_are_understood() -> None:
    read = messages(said("developer", "s"), said("Human", "a"), said("model", "b"))

    assert read == [("system", "s"), ("user", "a"), ("assistant", "b")]


def test_text_in_parts_is_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    assert messages(said("user", parts), said("assistant", "c")) == [
        ("user", "ab"),
        ("assistant", "c"),
    ]


def test_an_empty_system_turn_is_left_away() -> None:
    assert messages(said("system", ""), said("user", "a"), said("assistant", "b")) == [
        ("user", "a"),
        ("assistant", "b"),
    ]


@pytest.mark.parametrize(
    ("turns", "code"),
    [
        ([], Code.NO_TURNS),
        (["hello"], Code.NO_TURNS),
        ([said("user", "a"), "hello"], Code.NO_TURNS),
        ([said("user", "a")], Code.MISSING_ANSWER),
        ([said("user", "a"), said("assistant", None)], Code.MISSING_ANSWER),
        ([said("user", "a"), said("assistant", "b"), said("user", "c")], Code.MISSING_ANSWER),
        ([said("assistant", "b")], Code.MISSING_QUESTION),
        ([said("user", ""), said("assistant", "b")], Code.MISSING_QUESTION),
        ([said("narrator", "a")], Code.UNKNOWN_ROLE),
        ([{"content": "a"}], Code.UNKNOWN_ROLE),
        ([said("user", [{"type": "image_url"}])], Code.NOT_TEXT),
        ([said("user", "a"), said("assistant", None) | {"tool_calls": [{}]}], Code.BAD_TOOL_CALL),
        ([said("user", "a"), said("assistant", "b") | {"weight": 0.5}], Code.BAD_WEIGHT),
        ([said("user", "a"), said("assistant", "b") | {"weight": 0}], Code.NOTHING_LEARNT),
    ],
)
def test_a_conversation_with_a_gap_is_refused(turns: list[Any], code: Code) -> None:
    with pytest.raises(UnusableRowError) as refused:
        messages(*turns)

    assert refused.value.code == code


def test_an_alpaca_row_joins_instruction_and_input_behind_its_history() -> None:
    mapping = {"instruction": "i", "input": "in", "output": "out", "history": "h"}
    row = {"i": "Translate.", "in": "eau", "out": "water", "h": [["Hi", "Hello"]]}

    read = conversation("alpaca", mapping, row)

    assert [turn["content"] for turn in read] == ["Hi", "Hello", "Translate.\n\neau", "water"]


def test_a_system_column_comes_first() -> None:
    mapping = {"system": "s", "prompt": "p", "completion": "c"}

    read = conversation("prompt_completion", mapping, {"s": "Be kind.", "p": "a", "c": "b"})

    assert [turn["role"] for turn in read] == ["system", "user", "assistant"]


def test_prompt_and_completion_may_be_turns() -> None:
    mapping = {"prompt": "p", "completion": "c"}
    row = {"p": [said("user", "a")], "c": [said("assistant", "b")]}

    read = conversation("prompt_completion", mapping, row)

    assert [turn["content"] for turn in read] == ["a", "b"]


@pytest.mark.parametrize(("answer", "content"), [(4, "4"), (2.5, "2.5")])
def test_a_number_is_an_answer(answer: float, content: str) -> None:
    mapping = {"prompt": "p", "completion": "c"}

    read = conversation("prompt_completion", mapping, {"p": "a", "c": answer})

    assert read[-1]["content"] == content


def test_the_not_a_number_of_tables_is_a_missing_answer() -> None:
    mapping = {"prompt": "p", "completion": "c"}

    with pytest.raises(UnusableRowError) as refused:
        conversation("prompt_completion", mapping, {"p": "a", "c": float("nan")})

    assert refused.value.code == Code.MISSING_ANSWER
