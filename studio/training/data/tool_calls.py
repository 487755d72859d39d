"""Convert tools and tool calls for chat templates, and detect whether a template renders them.

In OpenAI's format, a call's arguments are JSON in a string. Most templates serialise objects to
JSON themselves, a few expect strings; a probe finds out which. A template without tool support
omits tools silently, so its output is checked.
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
    """Which parts of tool use a template renders."""

    definitions: bool
    calls: bool
    results: bool
    as_objects: bool = True
    """Whether it expects a call's arguments as parsed objects."""


class RenderRow(Protocol):
    """Renders a row, or returns "" if the template refuses it."""

    def __call__(self, row: TrainingRow, /, *, as_objects: bool) -> str: ...


def detect_tool_support(write: RenderRow) -> ToolSupport:
    """Find out which parts of tool use a template renders."""
    defined = write(
        TrainingRow(messages=_QUESTION, tools=(_probe_tool(_DEFINED),)), as_objects=True
    )
    conversation = TrainingRow(messages=_TALK, tools=(_probe_tool(_CALLED),))
    for as_objects in (True, False):
        text = write(conversation, as_objects=as_objects)
        # Python's own format for an object is not JSON: such a template needs strings.
        if _GIVEN in text and f"'{_GIVEN}'" not in text:
            return ToolSupport(
                _DEFINED in defined, calls=True, results=_RETURNED in text, as_objects=as_objects
            )
    return ToolSupport(_DEFINED in defined, calls=False, results=False)


def has_tools(row: TrainingRow) -> bool:
    return bool(row.tools) or any(turn.get("tool_calls") for turn in row.messages)


def missing_support(row: TrainingRow, support: ToolSupport) -> str:
    """Return which of a row's tool features the template would omit, or ""."""
    calls = any(turn.get("tool_calls") for turn in row.messages)
    if row.tools and not support.definitions:
        return "it does not render tool definitions"
    if calls and not support.calls:
        return "it does not render tool calls"
    if calls and not support.results and any(turn["role"] == "tool" for turn in row.messages):
        return "it does not render tool results"
    return ""


def to_template_message(message: Message, *, as_objects: bool = True) -> dict[str, Any]:
    """Return a turn in the form templates expect."""
    turn = {name: value for name, value in message.items() if name != "weight"}
    if not turn.get("tool_calls"):
        turn.pop("tool_calls", None)
        return turn
    convert: Callable[[Any], Any] = _parse_arguments if as_objects else _dump_arguments
    return turn | {"tool_calls": [_convert_call(call, convert) for call in turn["tool_calls"]]}


def _convert_call(call: Any, change: Callable[[Any], Any]) -> Any:  # noqa: ANN401 -- from a user's file
    function = call["function"]
    arguments = change(function.get("arguments", "{}"))
    return {"type": "function", **call, "function": {**function, "arguments": arguments}}


def _parse_arguments(arguments: Any) -> Any:  # noqa: ANN401 -- from a user's file
    """Parse arguments to an object; invalid JSON is returned as the model wrote it."""
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
"""The length that the strictest templates require."""
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
