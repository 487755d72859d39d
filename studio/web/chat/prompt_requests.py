"""What models of a chat are asked: sampling options, the answer's format, and the conversation.

A prompt is sent to a model exactly as the same request of the OpenAI-compatible API.
"""

import json
import secrets
from dataclasses import replace
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Len
from pydantic import BaseModel, ConfigDict, ValidationError

from studio.errors import InvalidError
from studio.schemas.validation_errors import field_errors
from studio.web.api.openai.chat_bodies import (
    ChatCompletionRequest,
    CompletionRequest,
    ContentPart,
    GenerationOptions,
    Turn,
)

MAX_MESSAGE_CHARS = 1_000_000
"""Far more than a context holds; a longer prompt is refused by its number of tokens."""

MAX_SEED = 2**53 - 1
"""The largest integer that scripts of a page keep exactly."""

ALTERNATIVES = 5
"""How many of the likeliest tokens are wanted in the place of each token that is scored."""


class Message(Turn):
    content: (
        Annotated[str, Len(0, MAX_MESSAGE_CHARS)] | Annotated[list[ContentPart], Len(1, 1000)]
    ) = ""

    @property
    def is_empty(self) -> bool:
        """Whether it has neither words nor images."""
        return isinstance(self.content, str) and not self.content.strip()


class SamplingOptions(BaseModel):
    """How an answer is generated. Everywhere the same defaults: what is most likely."""

    model_config = ConfigDict(extra="forbid")

    temperature: Annotated[float, Ge(0), Le(2)] = 0
    top_p: Annotated[float, Gt(0), Le(1)] = 1
    max_tokens: Annotated[int, Ge(1), Le(4096)] = 256
    seed: Annotated[int, Ge(0), Le(MAX_SEED)] | None = None
    """If it is None and tokens are drawn at random, the studio chooses one."""
    stop: Annotated[list[Annotated[str, Len(1, 1000)]], Len(0, 4)] = []
    """Texts that end an answer and are not part of it."""


class AnswerFormat(BaseModel):
    """What an answer consists of, and the functions that it may call, as somebody typed them."""

    answer_format: Literal["text", "json", "schema"] = "text"
    json_schema: Annotated[str, Len(0, MAX_MESSAGE_CHARS)] = ""
    """The JSON schema that an answer in the format `schema` follows."""
    functions: Annotated[str, Len(0, MAX_MESSAGE_CHARS)] = ""
    """A JSON list, as `tools` of OpenAI's API; empty without functions."""
    function_choice: Literal["auto", "required", "none"] = "auto"

    @property
    def is_plain(self) -> bool:
        """Whether an answer is any text."""
        return self.answer_format == "text" and not self.functions.strip()

    def format_fields(self) -> dict[str, Any]:
        """Return the format as fields of a chat completion.

        Raises:
            InvalidError: The schema or the functions are not JSON.

        """
        fields: dict[str, Any] = {}
        if self.answer_format == "json":
            fields["response_format"] = {"type": "json_object"}
        elif self.answer_format == "schema":
            schema = {"name": "answer", "schema": _read_json(self.json_schema, "JSON schema")}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        if self.functions.strip():
            fields["tools"] = _read_json(self.functions, "list of functions")
            fields["tool_choice"] = self.function_choice
        return fields


def _read_json(text: str, name: str) -> Any:  # noqa: ANN401 -- any JSON
    if not text.strip():
        raise InvalidError(f"The {name} is empty.", hint="Write it in the settings.")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidError(
            f"The {name} is not valid JSON: {error}.", hint="Correct it in the settings."
        ) from error


class PromptRequest(SamplingOptions, AnswerFormat):
    """What a model is asked."""

    messages: Annotated[list[Message], Len(1, 1000)]
    is_text: bool = False
    """Whether the last message is a text to continue, without a chat template."""
    expected: Annotated[str, Len(0, MAX_MESSAGE_CHARS)] = ""
    answer_start: Annotated[str, Len(0, MAX_MESSAGE_CHARS)] = ""
    """The beginning of an answer that was cut off, which the model continues."""

    def to_api(self, model: str) -> dict[str, Any]:
        """Return the body that asks the same through the API: a completion or a chat completion.

        Raises:
            InvalidError: The format of the answer is wrong.

        """
        if self.is_text:
            self._require_plain("A text is continued without a format and without functions.")
            text = self.messages[-1].content
            if not isinstance(text, str):
                raise InvalidError("A text is continued without images.", hint="Remove them.")
            prompt: dict[str, Any] = {"prompt": text}
        else:
            messages = [message.model_dump(exclude_none=True) for message in self.messages]
            prompt = {"messages": messages}
        optional = {"stop": self.stop, "seed": self.seed}
        return {
            "model": model,
            **prompt,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_tokens": self.max_tokens,
            **{name: value for name, value in optional.items() if value not in (None, [])},
            **({} if self.is_text else self.format_fields()),
        }

    def to_options(self, model: str, scored: str = "") -> GenerationOptions:
        """Return what the inference service generates with the model of this name.

        With `scored`, nothing is generated: the tokens of this answer are scored.

        Raises:
            InvalidError: The prompt is empty, or cannot be asked like this.

        """
        last = self.messages[-1]
        if last.role != "tool" and last.is_empty:
            raise InvalidError("The prompt is empty.", hint="Write something first.")
        if self.answer_start:
            self._require_plain("Only plain answers without functions can be continued.")
        body = self.to_api(model)
        if scored:
            body |= {"logprobs": True, "top_logprobs": ALTERNATIVES, "x_studio": {"score": scored}}
            body.pop("response_format", None)  # The probabilities are those without it.
        kind = CompletionRequest if self.is_text else ChatCompletionRequest
        try:
            options = kind.model_validate(body).to_request()
        except ValidationError as error:
            raise InvalidError(str(field_errors(error.errors(), kind)[0])) from error
        added: dict[str, Any] = {"is_turn": not self.is_text and not self.answer_start}
        if self.seed is None and self.temperature > 0:
            added["seed"] = secrets.randbelow(2**32)
        return replace(options, options=options.options.model_copy(update=added))

    def _require_plain(self, otherwise: str) -> None:
        if not self.is_plain:
            raise InvalidError(otherwise, hint="Change the settings, and ask again.")


class ScoredAnswer(PromptRequest):
    """A conversation, and an answer to it whose tokens are scored."""

    answer: Annotated[str, Len(1, MAX_MESSAGE_CHARS)]
