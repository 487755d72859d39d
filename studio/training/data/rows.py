"""Read the rows of a dataset for training: conversations, or plain text."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from studio.errors import TrainingError
from studio.intake.row_formats.schema import to_training_example
from studio.intake.row_formats.tagged_words import place_words
from studio.intake.rows.validation_rows import validation_indices

Message = Mapping[str, Any]
"""A turn: `role` and `content`, maybe `tool_calls`, `tool_call_id`, `name` and `weight`."""

Tool = Mapping[str, Any]
"""A function that may be called, in OpenAI's format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """The part of a row used for training: every token of a text, the answers of a conversation."""

    messages: Sequence[Message] = ()
    tools: Sequence[Tool] = ()
    text: str | None = None
    """None for a conversation."""
    rejected: Sequence[Message] = ()
    """For a preference, the answer that is worse than the one at the end of `messages`."""
    prompt_turns: int = 0
    """For a preference, how many of the messages come before the answers."""
    is_good: bool | None = None
    """How the last answer is rated; None if it is not."""
    labels: Sequence[str] | None = None
    """The labels that the last answer names; None unless there may be several."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The numbers that the last answer names, by column."""
    steps: Sequence[str] = ()
    """The lines of the last answer, if each is right or wrong."""
    correct: Sequence[bool] = ()
    """Whether each step is right."""
    words: Sequence[str] = ()
    """The words of the text, if each has a tag."""
    tags: Sequence[str] = ()
    """Their tags."""
    is_task: bool = False
    """Whether it has no answer to learn: graders score what the model writes."""
    item: Mapping[str, Any] = field(default_factory=dict)
    """What graders may read of a task, by column."""
    pair: Sequence[str] = ()
    """Two texts that belong together, then those that do not belong to the first."""
    score: float | None = None
    """How alike the two texts of a pair are; None if they just belong together."""
    number: int = 0
    """The row's number in its part of the dataset, counted from one."""
    part: str = "training"

    @property
    def location(self) -> str:
        return f"Row {self.number} of the {self.part} data" if self.number else "A row"


def is_trained_on(turn: Message) -> bool:
    """Whether a turn is an answer to train on; one of weight 0 is only read."""
    return bool(turn["role"] == "assistant" and turn.get("weight", 1) != 0)


def is_rated_bad(row: TrainingRow) -> bool:
    """Whether only methods that learn from bad answers, too, train on a row."""
    return row.is_good is False


def chosen_answer(row: TrainingRow) -> TrainingRow:
    """Return the better answer of a preference; the turns before it are only read."""
    return _with_answer(row, row.messages[row.prompt_turns :], is_good=True)


def rejected_answer(row: TrainingRow) -> TrainingRow:
    """Return the worse answer of a preference; the turns before it are only read."""
    return _with_answer(row, row.rejected, is_good=False)


def rated_answer(row: TrainingRow) -> TrainingRow:
    """Return the last turn of a rated row as the answer; those before it are only read."""
    prompt = _context(row.messages[:-1])
    return replace(row, messages=[*prompt, row.messages[-1]], prompt_turns=len(prompt))


def _with_answer(row: TrainingRow, turns: Sequence[Message], *, is_good: bool) -> TrainingRow:
    prompt = _context(row.messages[: row.prompt_turns])
    return replace(row, messages=[*prompt, *turns], rejected=(), is_good=is_good)


def _context(turns: Sequence[Message]) -> list[Message]:
    """Return turns that are only read."""
    return [{**turn, "weight": 0} for turn in turns]


def read_rows(path: Path, part: str = "training", *, with_bad: bool = False) -> list[TrainingRow]:
    """Read canonical rows, one JSON object per line; those rated bad only if they are asked for.

    Raises:
        TrainingError: a line is not a canonical row.

    """
    parsed = [row for row, _end in iter_rows(path, part, with_bad=with_bad)]
    trained, number = [row for row in parsed if row], len(parsed)
    if len(trained) < number:
        message = (
            f"{number - len(trained):,} of {number:,} rows of the {part} data are not trained on"
        )
        print(message, flush=True)  # noqa: T201 -- the run's own log
    return trained


def iter_rows(
    path: Path, part: str = "training", *, with_bad: bool = False
) -> Iterator[tuple[TrainingRow | None, int]]:
    """Yield each row, or None if it is not trained on, and the file offset where its line ends.

    Raises:
        TrainingError: a line is not a canonical row.

    """
    number = end = 0
    with path.open("rb") as lines:
        for line_number, content in enumerate(lines, 1):
            end += len(content)
            if content.strip():
                number += 1
                row = _read_line(content, number, part, line_number)
                yield row if with_bad or not is_rated_bad(row) else None, end


def to_training_row(canonical: Any, number: int, part: str) -> TrainingRow:  # noqa: ANN401 -- from a file
    """Convert a canonical row.

    Raises:
        ValueError: it is not a canonical row; the message explains why.

    """
    if problem := _find_problem(canonical):
        raise ValueError(problem)
    example = to_training_example(canonical)
    return TrainingRow(
        messages=example.messages,
        tools=example.tools,
        text=example.text if {"text", "anchor"} & canonical.keys() else None,
        rejected=example.rejected,
        prompt_turns=len(canonical["messages"]) if example.rejected else 0,
        is_good=example.is_good,
        labels=example.labels,
        numbers=example.numbers,
        steps=example.steps,
        correct=example.correct,
        words=example.words,
        tags=example.tags,
        is_task=example.item is not None,
        item=example.item or {},
        pair=example.pair,
        score=example.score,
        number=number,
        part=part,
    )


def split_rows(
    rows: Sequence[TrainingRow], share: float, seed: int
) -> tuple[list[TrainingRow], list[TrainingRow]]:
    """Hold out a share of the rows for validation, at least one; the same seed gives the same rows.

    Raises:
        TrainingError: there are fewer than two rows.

    """
    held_out = validation_indices(len(rows), share, seed)
    if len(held_out) >= len(rows):
        raise TrainingError(
            "too_few_rows",
            f"The dataset has {len(rows)} usable rows; training and validation need at least "
            "one each.",
            hint="Add rows, or add a validation part.",
        )
    training = [row for i, row in enumerate(rows) if i not in held_out]
    return training, [rows[i] for i in sorted(held_out)]


def _read_line(content: bytes, number: int, part: str, line_number: int) -> TrainingRow:
    try:
        return to_training_row(_parse_json(content), number, part)
    except ValueError as error:
        raise TrainingError(
            "bad_row",
            f"Row {number} of the {part} data (line {line_number} of its file) is not a "
            f"conversation: {error}.",
            hint="Fix that row and import the dataset again.",
            line=line_number,
        ) from error


def _parse_json(content: bytes) -> Any:  # noqa: ANN401 -- whatever JSON a line holds
    try:
        return json.loads(content)
    except ValueError as error:
        raise ValueError(f"it is not valid JSON ({error})") from error


def _find_problem(row: Any) -> str:  # noqa: ANN401 -- from a file
    """Return why a row is not canonical, or ""."""
    if not isinstance(row, dict) or not isinstance(row.get("text", ""), str):
        return "it has no list of turns called messages"
    if "text" in row:
        return _find_word_problem(row)
    return _find_pair_problem(row) if "anchor" in row else _find_turns_problem(row)


def _find_turns_problem(row: Mapping[str, Any]) -> str:
    turns = row.get("messages")
    if not isinstance(turns, list):
        return "it has no list of turns called messages"
    tools = row.get("tools", [])
    for name in ("chosen", "rejected"):
        if not isinstance(row.get(name, []), list):
            return f'"{name}" is not a list of turns'
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        return "its tools are not a list of functions"
    answers = [*row.get("chosen", []), *row.get("rejected", [])]
    problems = [
        _find_target_problem(row),
        _find_step_problem(row),
        _find_task_problem(row),
        *(_find_turn_problem(turn, number) for number, turn in enumerate([*turns, *answers], 1)),
    ]
    return next(filter(None, problems), "")


def _find_word_problem(row: Mapping[str, Any]) -> str:
    words, tags = row.get("words", []), row.get("tags", [])
    for listed in (words, tags):
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            return "its words or tags are not a list of texts"
    try:
        place_words(row["text"], words)
    except ValueError:
        return "its words are not those of its text"
    return "" if len(words) == len(tags) else "it has not as many tags as words"


def _find_pair_problem(row: Mapping[str, Any]) -> str:
    negatives = row.get("negatives", [])
    if not isinstance(negatives, list):
        return "its texts that do not match are no list"
    if not all(isinstance(one, str) for one in (row["anchor"], row.get("positive"), *negatives)):
        return "its texts are not two texts that belong together"
    return "" if _is_finite(row.get("score", 0)) else "its score is not a finite number"


def _find_step_problem(row: Mapping[str, Any]) -> str:
    steps, correct = row.get("steps", []), row.get("correct", [])
    if not isinstance(steps, list) or not all(isinstance(step, str) for step in steps):
        return "its steps are not a list of texts"
    if not isinstance(correct, list) or not all(isinstance(one, bool) for one in correct):
        return "it does not say which steps are right"
    return "" if len(steps) == len(correct) else "it does not say which steps are right"


def _find_task_problem(row: Mapping[str, Any]) -> str:
    if "item" not in row:
        return ""
    if not isinstance(row["item"], dict):
        return "its item is not an object"
    last = row["messages"][-1] if row["messages"] else {}
    is_asked = isinstance(last, dict) and last.get("role") in {"user", "tool"}
    return "" if is_asked else "it does not end with a turn that a model answers"


def _find_target_problem(row: Mapping[str, Any]) -> str:
    labels, numbers = row.get("labels", []), row.get("numbers", {})
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        return "its labels are not a list of texts"
    if not isinstance(numbers, dict) or not all(map(_is_finite, numbers.values())):
        return "its numbers are not finite numbers by name"
    return ""


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _find_turn_problem(turn: object, number: int) -> str:
    for name in ("role", "content"):
        if not isinstance(turn, dict) or not isinstance(turn.get(name), str):
            return f"turn {number} has no text in {name}"
    match turn:
        case {"tool_calls": [*calls]}:
            return (
                ""
                if all(map(_is_tool_call, calls))
                else f"turn {number} has a tool call without a function name"
            )
        case {"tool_calls": _}:
            return f"the tool calls of turn {number} are not a list"
    return ""


def _is_tool_call(call: object) -> bool:
    match call:
        case {"function": {"name": str(), "arguments": str() as arguments}}:
            return isinstance(json.loads(arguments), dict)
    return False
