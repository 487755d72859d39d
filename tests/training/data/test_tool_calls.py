"""Tools and their calls, as the chat templates of real families write them."""

import json
from pathlib import Path
from typing import Any

import pytest
import trl

from studio.errors import TrainingError
from studio.intake.row_formats.schema import to_training_example
from studio.training.data import chat_templates, tokenisation
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.rows import TrainingRow
from tests.training import tiny

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {"type": "object", "properties": {"one": {"type": "integer"}}},
    },
}
CALL = {"type": "function", "function": {"name": "add", "arguments": '{"one": 1}'}}
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "What is 1 plus 0?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "1", "name": "add"},
    {"role": "assistant", "content": "It is 1."},
]


def row(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> TrainingRow:
    told = to_training_example({"messages": messages, "tools": tools or []})
    assert told is not None
    return TrainingRow(messages=told.messages, tools=told.tools, number=7)


def of_family(name: str) -> str:
    return (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text("utf-8")


def learnt(template: str, rows: list[TrainingRow], choice: str = "model") -> list[list[str]]:
    reader = tiny.tokenizer(template)
    chat_templates.set_chat_template(reader, choice)  # type: ignore[arg-type] # parametrised
    return tiny.trained_texts(
        tokenisation.tokenise(rows, ChatTemplate(reader), reader, 5000), reader
    )


@pytest.mark.parametrize("family", ["qwen2_5", "qwen3"])
def test_tool_call_and_its_end_token_are_trained_on(family: str) -> None:
    (stretches,) = learnt(of_family(family), [row(TALK, [TOOL])])

    call, answer = (stretch.split("</think>")[-1].strip() for stretch in stretches)
    assert call == '<tool_call>\n{"name": "add", "arguments": {"one": 1}}\n</tool_call><|im_end|>'
    assert answer == "It is 1.<|im_end|>"


def test_tool_arguments_are_strings_when_template_concatenates_them() -> None:
    (stretches,) = learnt(of_family("deepseekv3"), [row(TALK)])

    assert '```json\n{"one": 1}\n```' in stretches[0]


def test_built_in_template_renders_tools_and_calls() -> None:
    reader = tiny.tokenizer("")
    chat_templates.set_chat_template(reader, "chatml")

    (written,) = ChatTemplate(reader).render([row(TALK, [TOOL])])

    assert json.dumps(TOOL) in written.text.splitlines()
    assert [written.text[start:end] for start, end in written.answers] == [
        '<tool_call>\n{"name": "add", "arguments": {"one": 1}}\n</tool_call><|im_end|>',
        "It is 1.<|im_end|>",
    ]


@pytest.mark.parametrize(
    ("rows", "lack"),
    [
        ([row(TALK)], "it does not render tool calls"),
        ([row(TALK[:1] + TALK[-1:], [TOOL])], "it does not render tool definitions"),
    ],
    ids=["calls", "definitions"],
)
def test_row_with_tools_is_rejected_when_template_omits_them(
    rows: list[TrainingRow], lack: str
) -> None:
    with pytest.raises(TrainingError) as caught:
        learnt("", rows, "plain")

    assert (caught.value.code, caught.value.message) == (
        "bad_row",
        f"Row 7 of the training data is rejected by the model's chat template: {lack}.",
    )


def test_template_rejection_names_row() -> None:
    twice: list[dict[str, Any]] = [TALK[0], TALK[1] | {"tool_calls": [CALL, CALL]}, TALK[3]]

    with pytest.raises(TrainingError, match=r"Row 7 .* only supports single tool-calls at once"):
        learnt(of_family("llama3_1"), [row(twice)])


@pytest.mark.parametrize("template", [tiny.WITH_MARKS, tiny.WITHOUT_MARKS], ids=["marks", "none"])
def test_answer_with_weight_0_is_not_trained_on(template: str) -> None:
    talk: list[dict[str, Any]] = [
        {"role": "user", "content": "Hello?"},
        {"role": "assistant", "content": "Go away.", "weight": 0},
        {"role": "user", "content": "Hello?"},
        {"role": "assistant", "content": "Hi!", "weight": 1},
        {"role": "user", "content": "Bye."},
        {"role": "assistant", "content": "No.", "weight": 0},
    ]

    assert learnt(template, [row(talk)]) == [["Hi!<|im_end|>"]]


def test_weight_0_answer_is_excluded_with_split_generation_marks() -> None:
    """Some templates mark a thought and its answer apart."""
    pieces = tiny.WITH_MARKS.replace(
        "{% generation %}", "{% generation %}{{ 'So: ' }}{% endgeneration %}{% generation %}"
    )
    talk: list[dict[str, Any]] = [
        {"role": "user", "content": "Hello?"},
        {"role": "assistant", "content": "Go away.", "weight": 0},
        {"role": "user", "content": "Hello?"},
        {"role": "assistant", "content": "Hi!"},
    ]

    assert learnt(pieces, [row(talk)]) == [["So: Hi!<|im_end|>"]]
