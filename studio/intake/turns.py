"""One row as a conversation: turns with a role and a text, the last of them an answer."""

import json
from collections.abc import Mapping
from typing import Any, Literal, TypedDict, cast

from studio.intake.problems import Code
from studio.intake.shapes import ShapeName

Role = Literal["system", "user", "assistant", "tool"]

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
"""What the roles are called elsewhere, and what they are here."""


class Turn(TypedDict):
    role: Role
    content: str


class UnusableRowError(Exception):
    """A row that cannot be learnt from. It is counted, told and left out."""

    def __init__(self, code: Code) -> None:
        super().__init__(code)
        self.code = code


def conversation(
    shape: ShapeName, mapping: Mapping[str, str], values: Mapping[str, Any]
) -> list[Turn]:
    """Return the turns of a row.

    Raises:
        UnusableRowError: a question or an answer is missing, or is no text.

    """
    row = {role: values.get(column) for role, column in mapping.items()}
    match shape:
        case "alpaca":
            turns = _alpaca(row)
        case "prompt_completion":
            turns = _pair(row)
        case "messages":
            turns = _listed(row["messages"], "role", "content")
        case "sharegpt":
            turns = _listed(row["conversations"], "from", "value")
    system = _text(row.get("system"))
    return _whole([_turn("system", system), *turns] if system.strip() else turns)


def _alpaca(row: Mapping[str, Any]) -> list[Turn]:
    past = row.get("history") or []
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in past):  # noqa: PLR2004 -- a pair
        raise UnusableRowError(Code.NOT_TEXT)
    earlier = [
        turn
        for question, answer in past
        for turn in (_turn("user", _text(question)), _turn("assistant", _text(answer)))
    ]
    question = _joined(_text(row["instruction"]), _text(row.get("input")))
    return [*earlier, _turn("user", question), _turn("assistant", _text(row["output"]))]


def _pair(row: Mapping[str, Any]) -> list[Turn]:
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, list) and isinstance(completion, list):
        return [*_listed(prompt, "role", "content"), *_listed(completion, "role", "content")]
    question = _joined(_text(row.get("context")), _text(prompt))
    return [_turn("user", question), _turn("assistant", _text(completion))]


def _listed(turns: Any, role_key: str, text_key: str) -> list[Turn]:  # noqa: ANN401 -- from a user's file
    if isinstance(turns, str):
        turns = _parsed(turns)
    match turns:
        case [{}, *_]:
            return [_read(turn, role_key, text_key) for turn in turns]
    raise UnusableRowError(Code.NO_TURNS)


def _parsed(cell: str) -> Any:  # noqa: ANN401 -- whatever JSON a cell holds
    try:
        return json.loads(cell)
    except (ValueError, RecursionError) as error:
        raise UnusableRowError(Code.NO_TURNS) from error


def _read(turn: Any, role_key: str, text_key: str) -> Turn:  # noqa: ANN401 -- from a user's file
    match turn:
        case {"tool_calls": [_, *_]} | {"function_call": {}}:
            raise UnusableRowError(Code.TOOL_CALL)
        case {}:
            role = ROLES.get(str(turn.get(role_key)).strip().lower())
            if role is None:
                raise UnusableRowError(Code.UNKNOWN_ROLE)
            return _turn(role, _content(turn.get(text_key)))
    raise UnusableRowError(Code.NO_TURNS)


def _content(value: Any) -> str:  # noqa: ANN401 -- from a user's file
    """Return a turn's text; it may be written in parts, of which pictures cannot be learnt."""
    if not isinstance(value, list):
        return _text(value)
    parts = [part.get("text") for part in value if isinstance(part, dict)]
    if len(parts) < len(value) or not all(isinstance(part, str) for part in parts):
        raise UnusableRowError(Code.NOT_TEXT)
    return "".join(cast("list[str]", parts))


def _text(value: Any) -> str:  # noqa: ANN401 -- from a user's file
    match value:
        case None:
            return ""
        case str():
            return value
        case bool():
            raise UnusableRowError(Code.NOT_TEXT)
        case int() | float():
            # Tables write a missing number as NaN.
            return "" if value != value else str(value)  # noqa: PLR0124 -- only NaN differs from itself
    raise UnusableRowError(Code.NOT_TEXT)


def _turn(role: Role, content: str) -> Turn:
    return {"role": role, "content": content}


def _joined(first: str, second: str) -> str:
    return "\n\n".join(part for part in (first, second) if part.strip())


def _whole(turns: list[Turn]) -> list[Turn]:
    """Return the turns that say something, refusing a conversation with a gap in it."""
    turns = [turn for turn in turns if turn["content"].strip() or turn["role"] != "system"]
    empty = {turn["role"] for turn in turns if not turn["content"].strip()}
    if "user" in empty or not any(turn["role"] == "user" for turn in turns):
        raise UnusableRowError(Code.MISSING_QUESTION)
    if "assistant" in empty or turns[-1]["role"] != "assistant":
        raise UnusableRowError(Code.MISSING_ANSWER)
    return turns
