"""Parse tools and tool calls of any format into OpenAI's format."""

import json
from typing import Any

from studio.intake.problems import ProblemCode
from studio.intake.row_formats.cell_text import parse_json_cell, to_text
from studio.intake.row_formats.schema import ToolCall, UnusableRowError


def parse_tools(value: Any) -> list[dict[str, Any]]:  # noqa: ANN401 -- from a user's file
    """Return the tools of a row, each as {"type": "function", "function": {"name": …}}.

    Raises:
        UnusableRowError: an entry is not a tool.

    """
    match parse_json_cell(value):
        case None | "":
            return []
        case [*tools]:
            return [_parse_tool(parse_json_cell(tool)) for tool in tools]
        case {}:
            return [_parse_tool(parse_json_cell(value))]
    raise UnusableRowError(ProblemCode.BAD_TOOLS)


def _parse_tool(value: Any) -> dict[str, Any]:  # noqa: ANN401 -- from a user's file
    match value:
        case {"function": {"name": str()}}:
            return {**value, "type": "function"}
        case {"name": str()}:
            return {"type": "function", "function": value}
    raise UnusableRowError(ProblemCode.BAD_TOOLS)


def parse_tool_calls(value: Any) -> list[ToolCall]:  # noqa: ANN401 -- from a user's file
    """Return the calls of a turn.

    Raises:
        UnusableRowError: a call has no name, or its arguments are not a JSON object.

    """
    parsed = parse_json_cell(value)
    match parsed:
        case None | "":
            return []
        case [*calls]:
            return [_parse_call(parse_json_cell(call)) for call in calls]
        case {}:
            return [_parse_call(parsed)]
    raise UnusableRowError(ProblemCode.BAD_TOOL_CALL)


def _parse_call(value: Any) -> ToolCall:  # noqa: ANN401 -- from a user's file
    match value:
        case {"function": {"name": str() as name, **rest}} | {"name": str() as name, **rest}:
            arguments = rest.get("arguments", rest.get("parameters"))
            call: ToolCall = {
                "type": "function",
                "function": {"name": name, "arguments": _parse_arguments(arguments)},
            }
            call_id = value.get("id")
            return {"id": to_text(call_id), **call} if call_id else call
    raise UnusableRowError(ProblemCode.BAD_TOOL_CALL)


def _parse_arguments(value: Any) -> str:  # noqa: ANN401 -- from a user's file
    match parse_json_cell(value):
        case None | "":
            return "{}"
        case {**arguments}:
            return json.dumps(arguments, ensure_ascii=False)
    raise UnusableRowError(ProblemCode.BAD_TOOL_CALL)
