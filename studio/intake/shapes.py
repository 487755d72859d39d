"""Which columns hold the question and the answer: told from their names and first values.

A shape is a habit of many people, so each role lists the names it goes by, the likeliest first.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from studio.errors import InvalidError

ShapeName = Literal["alpaca", "prompt_completion", "messages", "sharegpt"]
_COLUMNS = 1000
"""More than people name; rows without common columns are no table."""

Seen = Mapping[str, Any]
"""Each column with its first value that is not null."""

_PROMPTS = ("prompt", "question", "query", "input", "user", "source", "problem")
_ANSWERS = ("completion", "response", "output", "answer", "assistant", "target", "solution")
_TURNS = ("messages", "conversations", "conversation", "dialogue", "dialog", "chat", "turns")
_TURN_KEYS = ("role", "content", "from", "value")
_CONTEXTS = ("input", "context")
_TEXTS = ("text", "content", "document")
_LABELS = ("label", "kto_tag")

EXPECTED = (
    "instruction and output (input may be left out); prompt and completion, or question and "
    "answer; messages with role and content; conversations with from and value"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What was seen: the habit followed and the column that plays each role."""

    name: ShapeName
    mapping: dict[str, str]
    unused: list[str]

    @property
    def words(self) -> str:
        return in_words(self.name, self.mapping)


def in_words(name: str, mapping: Mapping[str, str]) -> str:
    """Say which shape was seen, and in which columns."""
    columns = list(mapping.values())
    listed = " and ".join(filter(None, [", ".join(columns[:-1]), columns[-1]])) if columns else "no"
    title = {"prompt_completion": "prompt and completion"}.get(name, name)
    return f"{title}: {listed} column{'s' if len(columns) > 1 else ''}"


def first_values(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return each column with its first value that is not null, of the first columns."""
    seen: dict[str, Any] = {}
    for row in rows:
        for column, value in row.items():
            if seen.get(column) is None:
                seen[column] = value
        if len(seen) > _COLUMNS:
            break
    return seen


def detect(seen: Seen) -> Shape:
    """Return the shape of the rows.

    Raises:
        InvalidError: no column can be learnt from, or the rows are for another kind of training.

    """
    by_habit = {name.strip().lower(): name for name in reversed(list(seen))}
    _refuse_other_training(seen, by_habit)
    found = _turns(seen, by_habit) or _alpaca(by_habit) or _pair(by_habit)
    if found is None:
        raise _no_column(list(seen), by_habit)
    name, mapping = found
    used = set(mapping.values())
    unused = [column for column in seen if column not in used]
    return Shape(name=name, mapping=mapping, unused=unused)


def _refuse_other_training(seen: Seen, by_habit: Mapping[str, str]) -> None:
    if {"chosen", "rejected"} <= by_habit.keys():
        raise InvalidError(
            "These are preferences: each row has a chosen and a rejected answer.",
            hint="This version learns from one good answer a row: keep the chosen answers only.",
            param="file",
        )
    label = _first(by_habit, _LABELS)
    if label is not None and isinstance(seen[label], bool):
        raise InvalidError(
            f"These are judged answers: the column {label} says of each whether it is good.",
            hint="This version learns from good answers only. Keep the rows that are judged good, "
            f"and leave the column {label} out.",
            param="file",
        )


def _turns(seen: Seen, by_habit: Mapping[str, str]) -> tuple[ShapeName, dict[str, str]] | None:
    for column in (by_habit[name] for name in _TURNS if name in by_habit):
        keys = _keys_of_turn(seen[column])
        if {"role", "content"} <= keys:
            return "messages", _roles(by_habit, messages=column)
        if {"from", "value"} <= keys:
            return "sharegpt", _roles(by_habit, conversations=column)
    return None


def _keys_of_turn(value: Any) -> frozenset[str]:  # noqa: ANN401 -- a value from a user's file
    match value:
        case [{**turn}, *_]:
            return frozenset(map(str, turn))
        case str() if value.lstrip().startswith("["):
            # CSV has no lists: a conversation is a cell with JSON in it.
            return frozenset(
                key for key in ("role", "content", "from", "value") if f'"{key}"' in value
            )
    return frozenset()


def _alpaca(by_habit: Mapping[str, str]) -> tuple[ShapeName, dict[str, str]] | None:
    output = _first(by_habit, _ANSWERS)
    if "instruction" not in by_habit or output is None:
        return None
    context = _first(by_habit, _CONTEXTS)
    more = {} if context is None else {"input": context}
    history = {"history": by_habit["history"]} if "history" in by_habit else {}
    named = {"instruction": by_habit["instruction"], **more, "output": output, **history}
    return "alpaca", _roles(by_habit, **named)


def _pair(by_habit: Mapping[str, str]) -> tuple[ShapeName, dict[str, str]] | None:
    prompt, answer = _first(by_habit, _PROMPTS), _first(by_habit, _ANSWERS)
    if prompt is None or answer is None:
        return None
    context = {"context": by_habit["context"]} if "context" in by_habit else {}
    return "prompt_completion", _roles(by_habit, **context, prompt=prompt, completion=answer)


def _roles(by_habit: Mapping[str, str], **roles: str) -> dict[str, str]:
    """Add the system column, which any shape may have."""
    return ({"system": by_habit["system"]} if "system" in by_habit else {}) | roles


def _first(by_habit: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((by_habit[name] for name in names if name in by_habit), None)


def _no_column(columns: list[str], by_habit: Mapping[str, str]) -> InvalidError:
    if _first(by_habit, _TEXTS) is not None:
        return InvalidError(
            f"There are no questions and answers here, only {_listed(columns)}.",
            hint=f"Running text cannot be learnt in this version. Expected are: {EXPECTED}.",
            param="file",
        )
    return InvalidError(
        f"No column can be learnt from. The file has {_listed(columns)}.",
        hint=f"Expected are: {EXPECTED}.",
        param="file",
    )


def _listed(columns: list[str], limit: int = 12, length: int = 60) -> str:
    names = ", ".join(name[:length] for name in columns[:limit])
    more = f" and {len(columns) - limit} more" if len(columns) > limit else ""
    return f"the column{'s' if len(columns) > 1 else ''} {names}{more}" if columns else "no columns"
