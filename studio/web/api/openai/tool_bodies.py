"""Functions that a model may call: the fields of chat completions about them."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from annotated_types import Len
from pydantic import Field

from studio.errors import InvalidError
from studio.protocols.inference_service import EXAMPLE_CALL
from studio.web.api.openai.schemas import Body, check_fields

FunctionName = Annotated[str, Field(pattern="^[a-zA-Z0-9_.-]{1,64}$")]


class FunctionDefinition(Body):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema; without one, the function takes no parameters."""
    strict: bool | None = None
    """Accepted and ignored: calls that are required follow their schema."""


class Tool(Body):
    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Body):
    name: FunctionName


class NamedTool(Body):
    type: Literal["function"]
    function: NamedFunction


class CalledFunction(Body):
    name: FunctionName
    arguments: str
    """A JSON object."""


class Call(Body):
    id: Annotated[str, Len(1, 100)]
    type: Literal["function"] = "function"
    function: CalledFunction

    def to_message(self, param: str) -> dict[str, Any]:
        """Return the call as a chat template takes it.

        Raises:
            InvalidError: its arguments are no JSON object.

        """
        for body in (self, self.function):
            check_fields(body, (), {})
        try:
            is_object = isinstance(json.loads(self.function.arguments), dict)
        except ValueError:
            is_object = False
        if not is_object:
            raise InvalidError("The arguments of a call must be a JSON object.", param=param)
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.function.name, "arguments": self.function.arguments},
        }


ToolChoice = Literal["none", "auto", "required"] | NamedTool


def check_tools(tools: Sequence[Tool], choice: ToolChoice | None) -> dict[str, dict[str, Any]]:
    """Return the parameters of the functions that an answer may call, by name.

    Raises:
        InvalidError: the choice names a function that is not defined, or two have one name.

    """
    for tool in tools:
        check_fields(tool, (), {})
        check_fields(tool.function, (), {})
    functions = {tool.function.name: tool.function.parameters for tool in tools}
    if len(functions) < len(tools):
        raise InvalidError("Two functions have the same name.", param="tools")
    schemas = {
        name: {"additionalProperties": False} if parameters is None else parameters
        for name, parameters in functions.items()
    }
    if not isinstance(choice, NamedTool):
        if choice == "required" and not schemas:
            raise InvalidError(
                "tool_choice is required, but there are no tools.", param="tool_choice"
            )
        return {} if choice == "none" else schemas
    check_fields(choice, (), {})
    check_fields(choice.function, (), {})
    name = choice.function.name
    if name not in schemas:
        raise InvalidError(f"tool_choice names {name}, which is not in tools.", param="tool_choice")
    return {name: schemas[name]}


def example_turn() -> dict[str, Any]:
    """Return a turn that calls a function: how a chat template writes it shows how calls look."""
    name, arguments = EXAMPLE_CALL
    function = {"name": name, "arguments": json.dumps(arguments)}
    # Nine letters and digits: the strictest templates require it.
    call = {"id": "studio001", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def name_results(messages: list[dict[str, Any]]) -> None:
    """Add the name of the function to each result: some chat templates write it.

    Raises:
        InvalidError: a result belongs to no call before it.

    """
    names: dict[str, str] = {}
    for place, message in enumerate(messages):
        for call in message.get("tool_calls", ()):
            names[call["id"]] = call["function"]["name"]
        if message["role"] == "tool":
            name = names.get(message["tool_call_id"])
            if name is None:
                raise InvalidError(
                    "A result of a tool must come after the call that it belongs to.",
                    param=f"messages.{place}.tool_call_id",
                )
            message["name"] = name
