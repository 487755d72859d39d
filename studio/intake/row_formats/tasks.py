"""Tasks: prompts to answer, and the columns that graders read of them."""

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeVar

from studio.graders.items import GradedRow
from studio.intake.problems import ProblemCode
from studio.intake.row_formats.message_formats import to_text
from studio.intake.row_formats.schema import UnusableRowError

REFERENCE = "reference_answer"
"""The column of a task that holds the answer of a conversation."""
ITEM_KINDS = ("task", "conversation", "preference")
"""Kinds of rows that have a prompt to answer."""
_MAX_DEPTH = 100
"""Lists and objects nested more deeply can be stored, but not shown."""


T = TypeVar("T", bound=Mapping[str, object])


def split_answer(turns: Sequence[T]) -> tuple[list[T], list[T]]:
    """Return the turns before the answer at the end, and the turns of that answer."""
    end = len(turns)
    while end and turns[end - 1]["role"] == "assistant":
        end -= 1
    return list(turns[:end]), list(turns[end:])


def answer_text(turns: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of an answer's turns."""
    return "\n\n".join(turn["content"] for turn in turns if turn["content"])


def to_graded_row(row: Mapping[str, Any], number: int) -> GradedRow | None:
    """Return a canonical row as graders see it; None if it has no prompt to answer in words.

    Of a conversation, the answer at its end is `item.reference_answer`, and of a preference the
    better one. Tasks keep their columns.
    """
    prompt, answer = split_answer([*row.get("messages", []), *row.get("chosen", [])])
    is_task, asks = "item" in row, bool(prompt) and prompt[-1]["role"] == "user"
    if not asks or not (is_task or answer) or any(map(_calls_functions, prompt)):
        return None
    item: dict[str, Any] = {"messages": prompt, **row.get("item", {})}
    if answer:
        item[REFERENCE] = answer_text(answer)
    return GradedRow(number=number, messages=prompt, item=item)


def _calls_functions(turn: Mapping[str, Any]) -> bool:
    return turn["role"] == "tool" or bool(turn.get("tool_calls"))


def reference_text(item: Mapping[str, Any]) -> str:
    """Return the answer that a task should have; "" if it has none to compare with."""
    return to_text(item.get(REFERENCE))


def build_item(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of columns as JSON values.

    Values that JSON has keep their types. Decimal numbers become numbers if a float holds them
    exactly; dates, times and other values become text; NaN, infinite numbers, and bytes that are no
    UTF-8 become null.

    Raises:
        UnusableRowError: a value is nested too deeply.

    """
    return {column: _to_json(value) for column, value in values.items()}


def _to_json(value: Any, depth: int = 0) -> Any:  # noqa: ANN401 -- from a user's file
    if depth > _MAX_DEPTH:
        raise UnusableRowError(ProblemCode.TOO_DEEP)
    match value:
        case dict():
            return {str(key): _to_json(inner, depth + 1) for key, inner in value.items()}
        case list() | tuple():
            return [_to_json(inner, depth + 1) for inner in value]
    return _scalar_to_json(value)


def _scalar_to_json(value: Any) -> Any:  # noqa: ANN401 -- from a user's file
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            return _to_number(value)
        case bytes():
            return _to_text(value)
        case None | bool() | int() | str():
            return value
    return str(value)


def _to_number(value: Decimal) -> float | int | str | None:
    if not value.is_finite():
        return None
    if value == value.to_integral_value():
        return int(value)
    number = float(value)
    return number if Decimal(repr(number)) == value else str(value)


def _to_text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
