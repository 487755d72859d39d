"""Templates of graders: `{{ item.answer }}`, `{{ sample.output_json.steps[0] }}`.

Only paths are looked up, and nothing is evaluated: a template is data of strangers.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from studio.graders.grades import GradeError

_PLACE = re.compile(r"\{\{([^{}]*)\}\}")
_PATH = re.compile(
    r"\s*(item|sample)((?:\.[^\W\d][\w-]*|\[-?\d{1,6}\]|\[\"[^\"]*\"\]|\['[^']*'\])*)\s*"
)
_STEP = re.compile(r"\.([^\W\d][\w-]*)|\[(-?\d+)\]|\[\"([^\"]*)\"\]|\['([^']*)'\]")

SAMPLE_KEYS = ("output_text", "output_json", "output_tools", "choices")
"""What OpenAI's graders know of an answer."""


@dataclass(frozen=True, slots=True)
class Sample:
    """An answer, as graders see it."""

    text: str
    tools: Sequence[Mapping[str, Any]] = ()
    """The calls of functions that it makes, as in OpenAI's API."""
    json: Any = field(init=False)
    """What it is if read as JSON; None if it is not JSON."""
    is_json: bool = field(init=False)

    def __post_init__(self) -> None:
        try:
            value = json.loads(self.text, parse_constant=_refuse_constant)
            readable = True
        except (ValueError, RecursionError):
            value, readable = None, False
        object.__setattr__(self, "json", value)
        object.__setattr__(self, "is_json", readable)

    def to_namespace(self) -> dict[str, Any]:
        """Return OpenAI's `sample`."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.tools:
            message["tool_calls"] = list(self.tools)
        return {
            "output_text": self.text,
            "output_json": self.json,
            "output_tools": list(self.tools),
            "choices": [{"index": 0, "message": message}],
        }


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def check_template(text: str) -> str:
    """Return a template.

    Raises:
        ValueError: a place in it is no path that can be looked up.

    """
    if "{{" in _PLACE.sub("", text):
        raise ValueError("A place that begins with {{ is no path, or is not closed by }}.")
    for place in _PLACE.finditer(text):
        namespace, steps = parse_path(place[1])
        if namespace == "sample" and steps and steps[0] not in SAMPLE_KEYS:
            raise ValueError(f"{place[0]}: sample has {', '.join(SAMPLE_KEYS)}, but no {steps[0]}.")
    return text


def parse_path(path: str) -> tuple[str, list[str | int]]:
    """Return the namespace and the keys and indices of a path.

    Raises:
        ValueError: it is no path.

    """
    match = _PATH.fullmatch(path)
    if not match:
        raise ValueError(
            f"{{{{{path}}}}} is no path such as item.answer, item.answers[0] or sample.output_text."
        )
    return match[1], list(_split_steps(match[2]))


def item_keys(template: str) -> Iterator[str]:
    """Yield the columns of the row that a template reads."""
    for place in _PLACE.finditer(template):
        namespace, steps = parse_path(place[1])
        if namespace == "item" and steps and isinstance(steps[0], str):
            yield steps[0]


def _split_steps(path: str) -> Iterator[str | int]:
    for name, index, *keys in _STEP.findall(path):
        yield int(index) if index else name or "".join(keys)


def fill(template: str, sample: Sample, item: object) -> str:
    """Return a template with its values; texts as they are, all else as JSON.

    Raises:
        GradeError: a value does not exist.

    """
    return _PLACE.sub(lambda place: _to_text(_find(place[1], sample, item)), template)


def _to_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _find(path: str, sample: Sample, item: object) -> object:
    try:
        namespace, steps = parse_path(path)
    except ValueError as error:
        raise GradeError("invalid_variable_error", str(error)) from error
    if namespace == "sample" and steps[:1] == ["output_json"] and not sample.is_json:
        raise GradeError("sample_parse_error", "The answer is not JSON.")
    value = item if namespace == "item" else sample.to_namespace()
    for place, step in enumerate(steps):
        try:
            value = _step_into(value, step)
        except (LookupError, TypeError) as error:
            reason = _describe(_join(namespace, steps[:place]), value)
            raise GradeError(
                "invalid_variable_error",
                f"{_join(namespace, steps[: place + 1])} does not exist: {reason}",
            ) from error
    return value


def _step_into(value: object, step: str | int) -> object:
    """Return what a value has under a key or at an index.

    Raises:
        LookupError: there is nothing.
        TypeError: values of its type have no such thing.

    """
    if isinstance(value, Mapping) and isinstance(step, str):
        return cast("Mapping[str, object]", value)[step]
    if isinstance(value, list) and isinstance(step, int):
        return value[step]
    raise TypeError


def _join(namespace: str, steps: Sequence[str | int]) -> str:
    return namespace + "".join(
        f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps
    )


def list_names(names: Sequence[object]) -> str:
    """Return some of the names of columns or keys, each cut if it is long: rows are not ours."""
    shown = [str(name)[:_NAME_CHARS] for name in names[:_SHOWN]] + ["…"] * (len(names) > _SHOWN)
    return ", ".join(shown)


_SHOWN, _NAME_CHARS = 8, 40


def _describe(name: str, value: object) -> str:
    """Say what a value has."""
    if isinstance(value, Mapping):
        shown = list_names([*value])
        return f"{name} has only these keys: {shown}." if value else f"{name} is an empty object."
    if isinstance(value, list):
        return f"{name} is a list with {len(value)} entries."
    if isinstance(value, str):
        return f"{name} is a text."
    if isinstance(value, bool):
        return f"{name} is true or false."
    return f"{name} is a number." if isinstance(value, int | float) else f"{name} is null."
