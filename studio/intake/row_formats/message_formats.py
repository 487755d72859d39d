"""Turns as others write them, read as ours: OpenAI's, sharegpt's, or a text by one speaker."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, cast

from studio.intake.problems import ProblemCode
from studio.intake.row_formats.cell_text import (
    content_text,
    parse_json_cell,
    reasoning_text,
    require_text,
    to_text,
)
from studio.intake.row_formats.schema import (
    MESSAGE_ROLES,
    MessageRole,
    Turn,
    UnusableRowError,
    make_turn,
)
from studio.intake.row_formats.tool_calls import parse_tool_calls

_TRANSCRIPT_START = re.compile(r"\s*Human: ")
_TRANSCRIPT_SPEAKER = re.compile(r"(?:\A\s*|\n\n)(Human|Assistant):")
"""How Anthropic's preferences write turns down."""
_WEIGHT_KEYS = ("weight", "loss_weight", "train", "training", "loss")
"""Keys that say whether an answer is learnt: OpenAI's, and those of other trainers."""
_WEIGHT_VALUES = {"0": 0, "0.0": 0, "false": 0, "1": 1, "1.0": 1, "true": 1}
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
_TURN_KEYS = frozenset({"role", "content", "from", "value", "name", "tool_call_id"})
_ANSWER_KEYS = frozenset({*_WEIGHT_KEYS, *_REASONING_KEYS, "tool_calls", "function_call"})


def parse_turns(value: Any) -> list[Turn]:  # noqa: ANN401 -- from a user's file
    """Return a list of turns; a cell of a table may hold it as JSON.

    Raises:
        UnusableRowError: it is none, or a turn in it cannot be read.

    """
    match parse_json_cell(value):
        case [{}, *_] as listed:
            return [_parse_turn(turn) for turn in listed]
    raise UnusableRowError(ProblemCode.NO_TURNS)


def parse_turns_or_text(value: Any, role: MessageRole) -> list[Turn]:  # noqa: ANN401 -- from a user's file
    """Return turns that may be written as a list, as one turn, or as a text of that role."""
    if not holds_turns(value):
        return [make_turn(role, require_text(value))]
    match parse_json_cell(value):
        case {} as one:
            return [_parse_turn(one if one.get("from") else {"role": role} | one)]
        case several:
            return parse_turns(several)


def holds_turns(value: Any) -> bool:  # noqa: ANN401 -- from a user's file
    """Tell turns from text, which may be JSON as well: an answer in JSON is an answer."""
    match value:
        case {"content": _} | {"value": _} | {"tool_calls": _} | [{}, *_]:
            return True
        case str():
            found = parse_json_cell(value)
            listed = found if isinstance(found, list) else [found]
            return bool(listed) and all(map(_is_turn, listed))
    return False


def parse_transcript(value: Any) -> list[Turn]:  # noqa: ANN401 -- from a user's file
    """Return the turns of a text that writes a whole conversation down; none if it is another."""
    if not (isinstance(value, str) and _TRANSCRIPT_START.match(value)):
        return []
    _, *pieces = _TRANSCRIPT_SPEAKER.split(value)
    pairs = zip(pieces[::2], pieces[1::2], strict=True)
    return [make_turn(MESSAGE_ROLES[who.lower()], what.strip()) for who, what in pairs]


def _is_turn(value: Any) -> bool:  # noqa: ANN401 -- from a user's file
    match value:
        case {"role": _, "content": _} | {"role": _, "tool_calls": _} | {"from": _, "value": _}:
            return True
    return False


def _parse_turn(turn: Any) -> Turn:  # noqa: ANN401 -- from a user's file
    if not isinstance(turn, dict):
        raise UnusableRowError(ProblemCode.NO_TURNS)
    # A null key is what Parquet makes of one that other turns have.
    named = turn.get("from") if turn.get("role") is None else turn["role"]
    written = turn.get("value") if turn.get("content") is None else turn["content"]
    name = to_text(named).strip().lower()
    role = MESSAGE_ROLES.get(name)
    if role is None:
        raise UnusableRowError(ProblemCode.UNKNOWN_ROLE, name[:100])
    if name == "function_call":
        return (
            make_turn(role, "")
            | _optional_fields(turn, role)
            | {"tool_calls": parse_tool_calls(written)}
        )
    return make_turn(role, content_text(written)) | _optional_fields(turn, role)


def _optional_fields(turn: dict[str, Any], role: MessageRole) -> Turn:
    """Return what only some turns have: calls, weights and reasoning of answers, names of tools."""
    more: dict[str, Any] = {}
    if role == "assistant":
        more["tool_calls"] = parse_tool_calls(turn.get("tool_calls")) or parse_tool_calls(
            turn.get("function_call")
        )
        more["weight"] = _parse_weight(turn)
        more["reasoning_content"] = _parse_reasoning(turn)
    elif role == "tool":
        more["tool_call_id"] = to_text(turn.get("tool_call_id"))
    more["name"] = to_text(turn.get("name"))
    # Left away where there is nothing to say; a weight of 1 is what an answer has anyway.
    return cast("Turn", {key: value for key, value in more.items() if value not in ("", [], 1)})


def _parse_reasoning(turn: dict[str, Any]) -> str:
    given = [turn[key] for key in _REASONING_KEYS if isinstance(turn.get(key), str)]
    return next(filter(str.strip, [*given, reasoning_text(turn.get("content"))]), "")


def _parse_weight(turn: dict[str, Any]) -> int:
    """Return whether an answer is learnt, 0 or 1, under whichever name its turn says so."""
    given = {key: to_text(turn[key]).strip() for key in _WEIGHT_KEYS if turn.get(key) is not None}
    weights = {_WEIGHT_VALUES.get(written.lower()) for written in given.values()}
    if None in weights or len(weights) > 1:
        written = ", ".join(f"{key}: {value}" for key, value in given.items())
        raise UnusableRowError(ProblemCode.BAD_WEIGHT, written[:100])
    return weights.pop() or 0 if weights else 1


def unused_keys(values: Iterable[Any]) -> list[str]:
    """Return the keys of turns that nothing is made of, in the order in which they are met."""
    found: dict[str, None] = {}
    for value in filter(holds_turns, values):
        listed = parse_json_cell(value)
        for turn in listed if isinstance(listed, list) else [listed]:
            found |= dict.fromkeys(_unused_turn_keys(turn) if isinstance(turn, dict) else ())
    return list(found)


def _unused_turn_keys(turn: dict[Any, Any]) -> Iterator[str]:
    name = to_text(turn.get("from") if turn.get("role") is None else turn["role"])
    answers = MESSAGE_ROLES.get(name.strip().lower()) == "assistant"
    for key, value in turn.items():
        is_read = key in _TURN_KEYS or (answers and key in _ANSWER_KEYS)
        is_read = is_read and (key not in _REASONING_KEYS or isinstance(value, str))
        # A flag that says a question is not learnt says what is so anyway.
        if not is_read and value not in (None, "", [], {}, False, 0):
            yield str(key)
