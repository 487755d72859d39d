"""Convert rows to conversations: pairs, lists of turns, labels and numbers."""

from typing import Any

from studio.intake.problems import ProblemCode
from studio.intake.row_formats.cell_text import (
    MappedRow,
    is_number,
    parse_json_cell,
    require_text,
    to_text,
)
from studio.intake.row_formats.message_formats import holds_turns, parse_turns, parse_turns_or_text
from studio.intake.row_formats.schema import (
    ConversationRow,
    Turn,
    UnusableRowError,
    make_turn,
    validate_conversation,
)
from studio.intake.row_formats.tool_calls import parse_tools


def build_alpaca(cells: MappedRow, system: str) -> ConversationRow:
    question = cells.join(cells.text("instruction"), cells.text("input"))
    answer = make_turn("assistant", cells.text("output"))
    past = _history_turns(cells.value("history"))
    return {
        "messages": validate_conversation(
            [*system_turns(cells, system), *past, make_turn("user", question), answer]
        )
    }


def _history_turns(value: Any) -> list[Turn]:  # noqa: ANN401 -- from a user's file
    past = parse_json_cell(value) or []
    if not isinstance(past, list) or not all(map(_is_pair, past)):
        raise UnusableRowError(ProblemCode.NOT_TEXT)
    return [
        turn
        for question, answer in past
        for turn in (
            make_turn("user", require_text(question)),
            make_turn("assistant", require_text(answer)),
        )
    ]


def _is_pair(value: Any) -> bool:  # noqa: ANN401 -- from a user's file
    return isinstance(value, list) and len(value) == 2  # noqa: PLR2004 -- a pair


def build_prompt_completion(cells: MappedRow, system: str) -> ConversationRow:
    return with_tools(
        cells, validate_conversation([*prompt_turns(cells, system), *completion_turns(cells)])
    )


def prompt_turns(cells: MappedRow, system: str) -> list[Turn]:
    """Return the turns of a prompt: a list of them, or the joined text of its columns."""
    raw = cells.value("prompt")
    if holds_turns(raw):
        return add_system_turn(cells, system, parse_turns_or_text(raw, "user"))
    question = cells.join(cells.text("context"), cells.text("prompt"))
    return [*system_turns(cells, system), make_turn("user", question)]


def completion_turns(cells: MappedRow) -> list[Turn]:
    raw = cells.value("completion")
    if holds_turns(raw):
        return parse_turns_or_text(raw, "assistant")
    return [make_turn("assistant", cells.text("completion"))]


def build_messages(cells: MappedRow, system: str) -> ConversationRow:
    raw = cells.value("messages")
    turns = parse_turns(cells.value("conversations") if raw is None else raw)
    return with_tools(cells, validate_conversation(add_system_turn(cells, system, turns)))


def build_classification(cells: MappedRow, system: str) -> ConversationRow:
    """Return a text with its label as the answer."""
    return _build_answered(cells, system, to_text(cells.value("label")))


def build_regression(cells: MappedRow, system: str) -> ConversationRow:
    """Return a text with its number as the answer."""
    answer = to_text(cells.value("number")).strip()
    if answer and not is_number(answer):
        raise UnusableRowError(ProblemCode.NOT_A_NUMBER)
    return _build_answered(cells, system, answer)


def _build_answered(cells: MappedRow, system: str, answer: str) -> ConversationRow:
    prompt = [*system_turns(cells, system), make_turn("user", cells.text("text"))]
    return {"messages": validate_conversation([*prompt, make_turn("assistant", answer)])}


def thread_turns(cells: MappedRow) -> list[Turn]:
    """Return the turns that a row adds to its thread: one turn, or a question and its answer."""
    speaker = cells.value("speaker")
    if speaker is not None:
        return parse_turns([{"role": speaker, "content": cells.text("text")}])
    return [make_turn("user", cells.text("prompt")), make_turn("assistant", cells.text("answer"))]


def system_turns(cells: MappedRow, system: str) -> list[Turn]:
    """Return the system turn: the row's own prompt, or else the mapping's."""
    content = cells.text("system")
    content = content if content.strip() else system
    return [make_turn("system", content)] if content.strip() else []


def add_system_turn(cells: MappedRow, system: str, turns: list[Turn]) -> list[Turn]:
    """Add the system turn to turns without one."""
    has_system = any(turn["role"] == "system" and turn["content"].strip() for turn in turns)
    return [*system_turns(cells, "" if has_system else system), *turns]


def with_tools(cells: MappedRow, messages: list[Turn]) -> ConversationRow:
    """Return a conversation with the row's tools, if any."""
    tools = parse_tools(cells.value("tools"))
    return {"messages": messages, "tools": tools} if tools else {"messages": messages}
