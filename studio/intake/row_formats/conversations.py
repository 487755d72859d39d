"""Rows that are conversations, or become ones: pairs, lists of turns, labels and numbers."""

from typing import Any

from studio.intake.problems import Code
from studio.intake.row_formats.cell_text import Cells, is_number, parsed, plain, text
from studio.intake.row_formats.message_formats import holds_turns, spoken, turns
from studio.intake.row_formats.schema import ConversationRow, Turn, UnusableRowError, said, whole
from studio.intake.row_formats.tool_calls import tools


def alpaca(cells: Cells, system: str) -> ConversationRow:
    question = cells.joined(cells.text("instruction"), cells.text("input"))
    answer = said("assistant", cells.text("output"))
    past = _history(cells.raw("history"))
    return {"messages": whole([*opening(cells, system), *past, said("user", question), answer])}


def _history(value: Any) -> list[Turn]:  # noqa: ANN401 -- from a user's file
    past = parsed(value) or []
    if not isinstance(past, list) or not all(map(_is_pair, past)):
        raise UnusableRowError(Code.NOT_TEXT)
    return [
        turn
        for question, answer in past
        for turn in (said("user", text(question)), said("assistant", text(answer)))
    ]


def _is_pair(value: Any) -> bool:  # noqa: ANN401 -- from a user's file
    return isinstance(value, list) and len(value) == 2  # noqa: PLR2004 -- a pair


def pair(cells: Cells, system: str) -> ConversationRow:
    return with_tools(cells, whole([*prompt(cells, system), *completion(cells)]))


def prompt(cells: Cells, system: str) -> list[Turn]:
    """Return the turns of a prompt: a list of them, or the joined text of its columns."""
    raw = cells.raw("prompt")
    if holds_turns(raw):
        return opened(cells, system, spoken(raw, "user"))
    question = cells.joined(cells.text("context"), cells.text("prompt"))
    return [*opening(cells, system), said("user", question)]


def completion(cells: Cells) -> list[Turn]:
    raw = cells.raw("completion")
    if holds_turns(raw):
        return spoken(raw, "assistant")
    return [said("assistant", cells.text("completion"))]


def listed(cells: Cells, system: str) -> ConversationRow:
    raw = cells.raw("messages")
    found = turns(cells.raw("conversations") if raw is None else raw)
    return with_tools(cells, whole(opened(cells, system, found)))


def labelled(cells: Cells, system: str) -> ConversationRow:
    """Return a text with its label as the answer."""
    return _answered(cells, system, plain(cells.raw("label")))


def measured(cells: Cells, system: str) -> ConversationRow:
    """Return a text with its number as the answer."""
    answer = plain(cells.raw("number")).strip()
    if answer and not is_number(answer):
        raise UnusableRowError(Code.NOT_A_NUMBER)
    return _answered(cells, system, answer)


def _answered(cells: Cells, system: str, answer: str) -> ConversationRow:
    asked = [*opening(cells, system), said("user", cells.text("text"))]
    return {"messages": whole([*asked, said("assistant", answer)])}


def node(cells: Cells) -> list[Turn]:
    """Return what one row of a thread adds to it: one turn, or a question and its answer."""
    speaker = cells.raw("speaker")
    if speaker is not None:
        return turns([{"role": speaker, "content": cells.text("text")}])
    return [said("user", cells.text("prompt")), said("assistant", cells.text("answer"))]


def opening(cells: Cells, system: str) -> list[Turn]:
    """Return the system turn: what the row says, else what all rows are told."""
    content = cells.text("system")
    content = content if content.strip() else system
    return [said("system", content)] if content.strip() else []


def opened(cells: Cells, system: str, found: list[Turn]) -> list[Turn]:
    """Put the system turn before turns that do not bring their own."""
    own = any(turn["role"] == "system" and turn["content"].strip() for turn in found)
    return [*opening(cells, "" if own else system), *found]


def with_tools(cells: Cells, messages: list[Turn]) -> ConversationRow:
    """Return a conversation with the row's tools, if it brings any."""
    given = tools(cells.raw("tools"))
    return {"messages": messages, "tools": given} if given else {"messages": messages}
