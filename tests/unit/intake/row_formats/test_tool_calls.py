"""Tools and their calls in a conversation, whichever way they were written."""

import json
from typing import Any, cast

import pytest

from studio.intake.mapping import Mapping
from studio.intake.problems import ProblemCode
from studio.intake.row_formats.row_builder import build_row
from studio.intake.row_formats.schema import ConversationRow, UnusableRowError, to_training_example

ASKED = {"role": "user", "content": "How warm is it in Bonn?"}
ANSWERED = {"role": "assistant", "content": "19 degrees."}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Bonn"}'},
}
DEFINED = {"name": "weather", "parameters": {"type": "object"}}
OPENAI = Mapping(shape="messages", roles={"messages": ["messages"], "tools": ["tools"]})
SHAREGPT = Mapping(shape="sharegpt", roles={"conversations": ["turns"], "tools": ["tools"]})


def read(mapping: Mapping, **values: Any) -> ConversationRow:  # noqa: ANN401 -- also what is no row
    return cast("ConversationRow", build_row(mapping, values))


def test_openai_conversation_with_tools_is_kept() -> None:
    messages = [
        ASKED,
        {"role": "assistant", "content": None, "tool_calls": [CALL], "weight": 0},
        {"role": "tool", "tool_call_id": "call_1", "content": "19"},
        ANSWERED,
    ]
    tools = [{"type": "function", "function": DEFINED}]

    row = read(OPENAI, messages=messages, tools=tools)

    assert row == {
        "messages": [
            ASKED,
            {"role": "assistant", "content": "", "tool_calls": [CALL], "weight": 0},
            {"role": "tool", "content": "19", "tool_call_id": "call_1"},
            ANSWERED,
        ],
        "tools": tools,
    }


def test_legacy_functions_become_tools() -> None:
    messages = [
        ASKED,
        {"role": "assistant", "function_call": {"name": "weather", "arguments": "{}"}},
        {"role": "function", "name": "weather", "content": "19"},
        ANSWERED,
    ]

    row = read(OPENAI, messages=messages, tools=[DEFINED])

    called = {"type": "function", "function": {"name": "weather", "arguments": "{}"}}
    assert row["messages"][1:3] == [
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "content": "19", "name": "weather"},
    ]
    assert row["tools"] == [{"type": "function", "function": DEFINED}]


def test_sharegpt_function_call_becomes_own_turn() -> None:
    turns = [
        {"from": "human", "value": "How warm is it in Bonn?"},
        {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Bonn"}}'},
        {"from": "observation", "value": "19"},
        {"from": "gpt", "value": "19 degrees."},
    ]

    row = read(SHAREGPT, turns=turns, tools=json.dumps([DEFINED]))

    called = {"type": "function", "function": CALL["function"]}
    assert row == {
        "messages": [
            ASKED,
            {"role": "assistant", "content": "", "tool_calls": [called]},
            {"role": "tool", "content": "19"},
            ANSWERED,
        ],
        "tools": [{"type": "function", "function": DEFINED}],
    }


def test_tool_call_may_be_last_answer() -> None:
    row = read(OPENAI, messages=[ASKED, {"role": "assistant", "tool_calls": [CALL]}])

    assert row["messages"][-1] == {"role": "assistant", "content": "", "tool_calls": [CALL]}


@pytest.mark.parametrize(
    "calls",
    [
        [{}],
        ["weather"],
        "weather",
        [{"function": {"name": "weather", "arguments": "city: Bonn"}}],
        [{"function": {"name": "weather", "arguments": "[1]"}}],
        [{"function": {"arguments": "{}"}}],
    ],
)
def test_invalid_tool_call_is_rejected(calls: Any) -> None:  # noqa: ANN401 -- what is no call
    with pytest.raises(UnusableRowError) as refused:
        read(OPENAI, messages=[ASKED, {"role": "assistant", "tool_calls": calls}])

    assert refused.value.code == ProblemCode.BAD_TOOL_CALL


@pytest.mark.parametrize("tools", ["weather", [1], [{"type": "function"}], 7])
def test_invalid_tools_are_rejected(tools: Any) -> None:  # noqa: ANN401 -- what is no tool
    with pytest.raises(UnusableRowError) as refused:
        read(OPENAI, messages=[ASKED, ANSWERED], tools=tools)

    assert refused.value.code == ProblemCode.BAD_TOOLS


def test_training_example_parses_tool_call_arguments() -> None:
    row = read(OPENAI, messages=[ASKED, {"role": "assistant", "tool_calls": [CALL]}])

    taught = to_training_example(row)

    assert taught is not None
    arguments: Any = taught.messages[1]["tool_calls"][0]["function"]["arguments"]
    assert arguments == {"city": "Bonn"}
    assert row["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"city": "Bonn"}'
