"""Tools and their calls as chat templates want them, and whether a template writes them at all.

OpenAI's form has a call's arguments as JSON in a string. Most templates write objects as JSON
themselves, a few join strings: which of both is found out by trying. A template that knows nothing
of tools would leave them out without a word, so what it writes is looked at.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from studio.training.data.rows import Message, TrainingRow

_DEFINED, _CALLED, _GIVEN, _RETURNED = "xyzzy_defined", "xyzzy_called", "plover", "plugh42"
"""Words that no template writes by itself."""


@dataclass(frozen=True, slots=True)
class ToolSupport:
    """What a template writes of tools."""

    definitions: bool
    calls: bool
    results: bool
    as_objects: bool = True
    """Whether it wants a call's arguments parsed."""


class RenderRow(Protocol):
    """Writes a row, or nothing where the template refuses it."""

    def __call__(self, row: TrainingRow, /, *, as_objects: bool) -> str: ...


def detect_tool_support(write: RenderRow) -> ToolSupport:
    """Find out what a template writes of tools."""
    defined = write(
        TrainingRow(messages=_QUESTION, tools=(_probe_tool(_DEFINED),)), as_objects=True
    )
    talk = TrainingRow(messages=_TALK, tools=(_probe_tool(_CALLED),))
    for as_objects in (True, False):
        text = write(talk, as_objects=as_objects)
        # Python's own way to write an object is no JSON: such a template wants strings.
        if _GIVEN in text and f"'{_GIVEN}'" not in text:
            return ToolSupport(
                _DEFINED in defined, calls=True, results=_RETURNED in text, as_objects=as_objects
            )
    return ToolSupport(_DEFINED in defined, calls=False, results=False)


def has_tools(row: TrainingRow) -> bool:
    return bool(row.tools) or any(turn.get("tool_calls") for turn in row.messages)


def missing_support(row: TrainingRow, can: ToolSupport) -> str:
    """Return what of a row's tools a template would leave out, or nothing."""
    calls = any(turn.get("tool_calls") for turn in row.messages)
    if row.tools and not can.definitions:
        return "it does not write which tools there are"
    if calls and not can.calls:
        return "it does not write calls of tools"
    if calls and not can.results and any(turn["role"] == "tool" for turn in row.messages):
        return "it does not write what tools return"
    return ""


def to_template_message(message: Message, *, as_objects: bool = True) -> dict[str, Any]:
    """Return a turn as templates know it."""
    known = {name: value for name, value in message.items() if name != "weight"}
    if not known.get("tool_calls"):
        known.pop("tool_calls", None)
        return known
    change: Callable[[Any], Any] = _parse_arguments if as_objects else _dump_arguments
    return known | {"tool_calls": [_convert_call(call, change) for call in known["tool_calls"]]}


def _convert_call(call: Any, change: Callable[[Any], Any]) -> Any:  # noqa: ANN401 -- from a user's file
    function = call["function"]
    arguments = change(function.get("arguments", "{}"))
    return {"type": "function", **call, "function": {**function, "arguments": arguments}}


def _parse_arguments(arguments: Any) -> Any:  # noqa: ANN401 -- from a user's file
    """Return arguments as an object; what is no JSON stays as a model once wrote it."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return arguments


def _dump_arguments(arguments: Any) -> str:  # noqa: ANN401 -- from a user's file
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _probe_tool(name: str) -> dict[str, Any]:
    properties = {"colossal": {"type": "string", "description": "Said aloud."}}
    parameters = {"type": "object", "properties": properties, "required": ["colossal"]}
    function = {"name": name, "description": "Moves you.", "parameters": parameters}
    return {"type": "function", "function": function}


_ID = "abcde1234"
"""As long as the strictest templates want it."""
_QUESTION: tuple[Message, ...] = ({"role": "user", "content": "?"},)
_TALK: tuple[Message, ...] = (
    *_QUESTION,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": _ID,
                "type": "function",
                "function": {"name": _CALLED, "arguments": json.dumps({"colossal": _GIVEN})},
            }
        ],
    },
    {"role": "tool", "content": _RETURNED, "tool_call_id": _ID, "name": _CALLED},
    {"role": "assistant", "content": "."},
)
