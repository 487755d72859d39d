"""Rows as conversations, with whatever roles and parts they come in."""

from typing import Any, cast

import pytest

from studio.intake.mapping import Mapping, ShapeName
from studio.intake.problems import ProblemCode
from studio.intake.row_formats.message_formats import unused_keys
from studio.intake.row_formats.row_builder import build_row
from studio.intake.row_formats.schema import ConversationRow, Turn, UnusableRowError


def messages(*turns: Any) -> list[tuple[str, str]]:  # noqa: ANN401 -- also what is no turn
    read = conversation("messages", {"messages": "messages"}, {"messages": list(turns)})
    return [(turn["role"], turn["content"]) for turn in read]


def conversation(shape: ShapeName, roles: dict[str, str], row: dict[str, Any]) -> list[Turn]:
    mapping = Mapping(shape=shape, roles={role: [column] for role, column in roles.items()})
    return cast("ConversationRow", build_row(mapping, row))["messages"]


def said(role: str, content: Any) -> dict[str, Any]:  # noqa: ANN401 -- also what is no text
    return {"role": role, "content": content}


def test_role_aliases_are_normalised() -> None:
    read = messages(said("developer", "s"), said("Human", "a"), said("model", "b"))

    assert read == [("system", "s"), ("user", "a"), ("assistant", "b")]


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    assert messages(said("user", parts), said("assistant", "c")) == [
        ("user", "ab"),
        ("assistant", "c"),
    ]


def test_empty_system_turn_is_dropped() -> None:
    assert messages(said("system", ""), said("user", "a"), said("assistant", "b")) == [
        ("user", "a"),
        ("assistant", "b"),
    ]


@pytest.mark.parametrize(
    ("turns", "code"),
    [
        ([], ProblemCode.NO_TURNS),
        (["hello"], ProblemCode.NO_TURNS),
        ([said("user", "a"), "hello"], ProblemCode.NO_TURNS),
        ([said("user", "a")], ProblemCode.MISSING_ANSWER),
        ([said("user", "a"), said("assistant", None)], ProblemCode.MISSING_ANSWER),
        (
            [said("user", "a"), said("assistant", "b"), said("user", "c")],
            ProblemCode.MISSING_ANSWER,
        ),
        ([said("assistant", "b")], ProblemCode.MISSING_QUESTION),
        ([said("user", ""), said("assistant", "b")], ProblemCode.MISSING_QUESTION),
        ([said("narrator", "a")], ProblemCode.UNKNOWN_ROLE),
        ([{"content": "a"}], ProblemCode.UNKNOWN_ROLE),
        ([said("user", [{"type": "image_url"}])], ProblemCode.MISSING_QUESTION),
        (
            [said("user", "a"), said("assistant", None) | {"tool_calls": [{}]}],
            ProblemCode.BAD_TOOL_CALL,
        ),
        ([said("user", "a"), said("assistant", "b") | {"weight": 0.5}], ProblemCode.BAD_WEIGHT),
        ([said("user", "a"), said("assistant", "b") | {"weight": 0}], ProblemCode.NOTHING_LEARNT),
    ],
)
def test_conversation_with_gap_is_rejected(turns: list[Any], code: ProblemCode) -> None:
    with pytest.raises(UnusableRowError) as refused:
        messages(*turns)

    assert refused.value.code == code


def test_alpaca_row_joins_instruction_and_input_after_history() -> None:
    mapping = {"instruction": "i", "input": "in", "output": "out", "history": "h"}
    row = {"i": "Translate.", "in": "eau", "out": "water", "h": [["Hi", "Hello"]]}

    read = conversation("alpaca", mapping, row)

    assert [turn["content"] for turn in read] == ["Hi", "Hello", "Translate.\n\neau", "water"]


def test_system_column_becomes_first_turn() -> None:
    mapping = {"system": "s", "prompt": "p", "completion": "c"}

    read = conversation("prompt_completion", mapping, {"s": "Be kind.", "p": "a", "c": "b"})

    assert [turn["role"] for turn in read] == ["system", "user", "assistant"]


def test_prompt_and_completion_may_be_lists_of_turns() -> None:
    mapping = {"prompt": "p", "completion": "c"}
    row = {"p": [said("user", "a")], "c": [said("assistant", "b")]}

    read = conversation("prompt_completion", mapping, row)

    assert [turn["content"] for turn in read] == ["a", "b"]


@pytest.mark.parametrize(("answer", "content"), [(4, "4"), (2.5, "2.5")])
def test_number_is_accepted_as_answer(answer: float, content: str) -> None:
    mapping = {"prompt": "p", "completion": "c"}

    read = conversation("prompt_completion", mapping, {"p": "a", "c": answer})

    assert read[-1]["content"] == content


def test_nan_answer_is_missing_answer() -> None:
    mapping = {"prompt": "p", "completion": "c"}

    with pytest.raises(UnusableRowError) as refused:
        conversation("prompt_completion", mapping, {"p": "a", "c": float("nan")})

    assert refused.value.code == ProblemCode.MISSING_ANSWER


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "value": "a"},
        {"text": "a"},
        {"type": "input_text", "text": "a"},
        {"type": "text", "text": {"value": "a", "annotations": []}},
        {"type": "text", "text": None, "value": "a", "image_url": None},
        "a",
    ],
)
def test_text_part_variants_are_read(part: Any) -> None:  # noqa: ANN401 -- as in a file
    assert messages(said("user", [part]), said("assistant", "b"))[0] == ("user", "a")


def test_non_text_part_is_named_in_error() -> None:
    parts = [{"type": "tool_result", "tool_use_id": "1", "content": "a"}]

    with pytest.raises(UnusableRowError) as refused:
        messages(said("user", parts), said("assistant", "b"))

    assert (refused.value.code, refused.value.detail) == (ProblemCode.NOT_TEXT, "tool_result")


@pytest.mark.parametrize(
    "flag",
    [
        {"weight": 0},
        {"loss_weight": 0.0},
        {"train": False},
        {"training": "false"},
        {"loss": False},
        {"weight": None, "loss": 0},
    ],
)
def test_answer_excluded_by_any_flag_gets_zero_weight(flag: dict[str, Any]) -> None:
    turns = [said("user", "a"), said("assistant", "b") | flag, said("assistant", "c")]
    read = conversation("messages", {"messages": "messages"}, {"messages": turns})

    assert [turn.get("weight", 1) for turn in read] == [1, 0, 1]


@pytest.mark.parametrize("flag", [{"loss_weight": 0.5}, {"weight": 1, "train": False}])
def test_invalid_weight_flag_error_names_its_key(flag: dict[str, Any]) -> None:
    with pytest.raises(UnusableRowError) as refused:
        messages(said("user", "a"), said("assistant", "b") | flag)

    assert refused.value.code is ProblemCode.BAD_WEIGHT
    assert refused.value.detail.startswith(f"{next(iter(flag))}: ")


@pytest.mark.parametrize(
    "answer",
    [
        said("assistant", "b") | {"reasoning_content": "Why?"},
        said("assistant", "b") | {"reasoning": "Why?"},
        said("assistant", "b") | {"thinking": "Why?"},
        said(
            "assistant", [{"type": "thinking", "thinking": "Why?"}, {"type": "text", "text": "b"}]
        ),
    ],
)
def test_reasoning_variants_become_reasoning_content(answer: dict[str, Any]) -> None:
    turns = [said("user", "a"), answer]
    read = conversation("messages", {"messages": "messages"}, {"messages": turns})

    assert read[1] == {"role": "assistant", "content": "b", "reasoning_content": "Why?"}


def test_unused_turn_keys_are_listed() -> None:
    values = [
        [
            said("user", "a") | {"id": 7, "train": True, "loss": False, "name": "Ann"},
            said("assistant", "b") | {"annotations": [], "rating": 5, "thinking": {"steps": 2}},
        ],
        '{"name": "an answer in JSON", "age": 3}',
    ]

    assert unused_keys(values) == ["id", "train", "rating", "thinking"]
