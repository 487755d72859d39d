"""The rows of a data set as training reads them: conversations, or text as it stands."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studio.errors import TrainingError
from studio.intake.row_formats.sft_view import to_sft_example

Message = Mapping[str, Any]
"""A turn: `role` and `content`, maybe `tool_calls`, `tool_call_id`, `name` and `weight`."""

Tool = Mapping[str, Any]
"""A function that may be called, as OpenAI describes one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """What is learnt of one row; of text every token, of a conversation its answers."""

    messages: Sequence[Message] = ()
    tools: Sequence[Tool] = ()
    text: str | None = None
    """None for a conversation."""
    number: int = 0
    """Which row of its part of the data set it is, counted from one."""
    part: str = "training"

    @property
    def location(self) -> str:
        return f"Row {self.number} of the {self.part} data" if self.number else "A row"


def is_trained_on(turn: Message) -> bool:
    """Whether a turn is an answer that is to be learnt: one of weight 0 is read alone."""
    return bool(turn["role"] == "assistant" and turn.get("weight", 1) != 0)


def read_rows(path: Path, part: str = "training") -> list[TrainingRow]:
    """Read canonical rows, one JSON object a line; those that sft learns nothing of are left out.

    Raises:
        TrainingError: a line is something else.

    """
    every = [row for row, _end in iter_rows(path, part)]
    found, number = [row for row in every if row], len(every)
    if len(found) < number:
        told = f"{number - len(found):,} of {number:,} rows of the {part} data are not to be learnt"
        print(told, flush=True)  # noqa: T201 -- the run's own log
    return found


def iter_rows(path: Path, part: str = "training") -> Iterator[tuple[TrainingRow | None, int]]:
    """Yield what is learnt of each row, None where nothing, and where in the file its line ends.

    Raises:
        TrainingError: a line is no canonical row.

    """
    number = end = 0
    with path.open("rb") as lines:
        for line, said in enumerate(lines, 1):
            end += len(said)
            if said.strip():
                number += 1
                yield _read_line(said, number, part, line), end


def to_training_row(said: Any, number: int, part: str) -> TrainingRow | None:  # noqa: ANN401 -- from a file
    """Return what sft learns of a canonical row; None where nothing.

    Raises:
        ValueError: it is no such row; the message says why.

    """
    if flaw := _find_problem(said):
        raise ValueError(flaw)
    learnt = to_sft_example(said)
    if learnt is None:
        return None
    return TrainingRow(
        messages=learnt.messages,
        tools=learnt.tools,
        text=learnt.text if "text" in said else None,
        number=number,
        part=part,
    )


def split_rows(
    rows: Sequence[TrainingRow], share: float, seed: int
) -> tuple[list[TrainingRow], list[TrainingRow]]:
    """Hold back a share of the rows, the same ones for the same seed, and at least one.

    Raises:
        TrainingError: there are not two rows, one to learn and one to measure by.

    """
    held = validation_indices(len(rows), share, seed)
    if len(held) >= len(rows):
        raise TrainingError(
            "too_few_rows",
            f"The data set has {len(rows)} usable rows; training and validation need one each.",
            hint="Add rows, or a validation part.",
        )
    kept = [row for i, row in enumerate(rows) if i not in held]
    return kept, [rows[i] for i in sorted(held)]


def validation_indices(count: int, share: float, seed: int) -> set[int]:
    """Return the places of the rows to measure by, among so many."""
    held = min(count, max(1, round(count * share)))
    return set(random.Random(seed).sample(range(count), held))  # noqa: S311 -- no secret


def _read_line(said: bytes, number: int, part: str, line: int) -> TrainingRow | None:
    try:
        return to_training_row(_parse_json(said), number, part)
    except ValueError as error:
        raise TrainingError(
            "bad_row",
            f"Row {number} of the {part} data (line {line} of its file) is no conversation: "
            f"{error}.",
            hint="Mend that row, and import the data set again.",
            line=line,
        ) from error


def _parse_json(said: bytes) -> Any:  # noqa: ANN401 -- whatever JSON a line holds
    try:
        return json.loads(said)
    except ValueError as error:
        raise ValueError(f"it is not valid JSON ({error})") from error


def _find_problem(row: Any) -> str:  # noqa: ANN401 -- from a file
    """Return what keeps a row from being a canonical one, or nothing."""
    if not isinstance(row, dict) or not isinstance(row.get("text", ""), str):
        return "it has no list of turns called messages"
    if "text" in row:
        return ""
    turns = row.get("messages")
    if not isinstance(turns, list):
        return "it has no list of turns called messages"
    chosen, tools = row.get("chosen", []), row.get("tools", [])
    if not isinstance(chosen, list):
        return "what was chosen is no list of turns"
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        return "its tools are no list of functions"
    flaws = (_find_turn_problem(turn, number) for number, turn in enumerate([*turns, *chosen], 1))
    return next(filter(None, flaws), "")


def _find_turn_problem(turn: object, number: int) -> str:
    for name in ("role", "content"):
        if not isinstance(turn, dict) or not isinstance(turn.get(name), str):
            return f"turn {number} has no {name} that is text"
    match turn:
        case {"tool_calls": [*calls]}:
            return (
                "" if all(map(_is_tool_call, calls)) else f"turn {number} calls no tool by its name"
            )
        case {"tool_calls": _}:
            return f"turn {number} has tool calls that are no list"
    return ""


def _is_tool_call(call: object) -> bool:
    match call:
        case {"function": {"name": str(), "arguments": str() as arguments}}:
            return isinstance(json.loads(arguments), dict)
    return False
