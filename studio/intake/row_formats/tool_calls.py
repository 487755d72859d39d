"""Tools a model may call, and its calls, in OpenAI's form whichever way they were written."""

import json
from typing import Any

from studio.intake.problems import Code
from studio.intake.row_formats.cell_text import parsed, plain
from studio.intake.row_formats.schema import ToolCall, UnusableRowError


def tools(value: Any) -> list[dict[str, Any]]:  # noqa: ANN401 -- from a user's file
    """Return the tools of a row, each as {"type": "function", "function": {"name": …}}.

    Raises:
        UnusableRowError: something there is no tool.

    """
    match parsed(value):
        case None | "":
            return []
        case [*given]:
            return [_tool(parsed(tool)) for tool in given]
        case {}:
            return [_tool(parsed(value))]
    raise UnusableRowError(Code.BAD_TOOLS)


def _tool(value: Any) -> dict[str, Any]:  # noqa: ANN401 -- from a user's file
    match value:
        case {"function": {"name": str()}}:
            return {**value, "type": "function"}
        case {"name": str()}:
            return {"type": "function", "function": value}
    raise UnusableRowError(Code.BAD_TOOLS)


def calls(value: Any) -> list[ToolCall]:  # noqa: ANN401 -- from a user's file
    """Return the calls of a turn.

    Raises:
        UnusableRowError: one of them names no tool, or its arguments are no JSON object.

    """
    found = parsed(value)
    match found:
        case None | "":
            return []
        case [*given]:
            return [_call(parsed(call)) for call in given]
        case {}:
            return [_call(found)]
    raise UnusableRowError(Code.BAD_TOOL_CALL)


def _call(value: Any) -> ToolCall:  # noqa: ANN401 -- from a user's file
    match value:
        case {"function": {"name": str() as name, **rest}} | {"name": str() as name, **rest}:
            written = rest.get("arguments", rest.get("parameters"))
            call: ToolCall = {
                "type": "function",
                "function": {"name": name, "arguments": _arguments(written)},
            }
            given = value.get("id")
            return {"id": plain(given), **call} if given else call
    raise UnusableRowError(Code.BAD_TOOL_CALL)


def _arguments(value: Any) -> str:  # noqa: ANN401 -- from a user's file
    match parsed(value):
        case None | "":
            return "{}"
        case {**arguments}:
            return json.dumps(arguments, ensure_ascii=False)
    raise UnusableRowError(Code.BAD_TOOL_CALL)
