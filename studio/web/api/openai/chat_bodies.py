"""What chat completions and completions are asked: the fields of their bodies."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len
from pydantic import Field

from studio.errors import InvalidError
from studio.protocols.inference_service import GenerationRequest
from studio.web.api.openai import tool_bodies
from studio.web.api.openai.schemas import Body, check_fields
from studio.web.api.openai.tool_bodies import Call, NamedTool, Tool, ToolChoice

IGNORED_FIELDS = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Fields that do not affect the answer: accepted and ignored."""

NEUTRAL_VALUES: dict[str, Collection[object]] = {
    "best_of": (1,),
    "frequency_penalty": (0, 0.0),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "presence_penalty": (0, 0.0),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "audio": (),
    "prediction": (),
    "verbosity": (),
    "web_search_options": (),
}
"""Unsupported fields, each with the values that change nothing; any other value is rejected."""

_MESSAGE_NEUTRAL_VALUES: dict[str, Collection[object]] = {
    "refusal": (),
    "audio": (),
}
_DEFAULT_COMPLETION_TOKENS = 16
"""The default length of a completion, as in OpenAI's API."""


class StreamOptions(Body):
    include_usage: bool = False
    include_obfuscation: bool = False
    """Accepted and ignored: answers are not padded."""


class TextPart(Body):
    type: Literal["text"]
    text: str


class ImageUrl(Body):
    url: Annotated[str, Len(1, 100 * 2**20)]
    """An image itself, as `data:image/png;base64,…`, or its address. PNG, JPEG, WebP or GIF."""
    detail: Literal["auto", "low", "high", "original"] | None = None
    """Accepted and ignored: a model reads each image as in training."""


class ImagePart(Body):
    type: Literal["image_url"]
    image_url: ImageUrl


ContentPart = Annotated[TextPart | ImagePart, Field(discriminator="type")]


class JsonSchema(Body):
    name: Annotated[str, Len(1, 64)]
    """Accepted and ignored, as is the description: the model does not read them."""
    description: str | None = None
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    """Without one, any JSON object."""
    strict: bool | None = None
    """Accepted and ignored: every answer follows its schema."""


class ResponseFormat(Body):
    """What an answer consists of: text, any JSON object, or JSON that follows a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def to_schema(self) -> dict[str, Any] | None:
        """Return the JSON schema that the answer follows, None for text.

        Raises:
            InvalidError: there is no schema where there must be one, or one where there is none.

        """
        check_fields(self, (), {})
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise InvalidError(
                "response_format needs json_schema exactly if its type is json_schema.",
                param="response_format.json_schema",
            )
        if self.type == "text":
            return None
        if self.json_schema is not None:
            check_fields(self.json_schema, (), {})
        own = self.json_schema.json_schema if self.json_schema is not None else None
        return {"type": "object"} if own is None else own


class ChatStudioOptions(Body):
    score: Annotated[str, Len(1, 1_000_000)] | None = None
    """An answer whose tokens are scored: nothing is generated."""


class Turn(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPart], Len(1, 1000)] | None = None
    """None only in a turn that calls functions."""
    name: str | None = None
    """Accepted and ignored: chat templates do not use it."""
    tool_calls: Annotated[list[Call], Len(0, 128)] | None = None
    tool_call_id: Annotated[str, Len(1, 100)] | None = None
    """The call whose result this turn is."""

    def to_message(self, place: int) -> dict[str, Any]:
        """Return the turn as a chat template takes it; `place` is its index.

        Raises:
            InvalidError: its parts do not go together.

        """
        check_fields(self, (), _MESSAGE_NEUTRAL_VALUES)
        param = f"messages.{place}"
        if self.tool_calls and self.role != "assistant":
            raise InvalidError("Only an assistant calls tools.", param=f"{param}.tool_calls")
        if (self.tool_call_id is None) == (self.role == "tool"):
            raise InvalidError(
                "The results of tools, and no other turns, have a tool_call_id.",
                param=f"{param}.tool_call_id",
            )
        if self.content is None and not self.tool_calls:
            raise InvalidError("The content is missing.", param=f"{param}.content")
        text, images = self._read_content(f"{param}.content")
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": text,
        }
        if images:
            message["images"] = images
        if self.tool_calls:
            message["tool_calls"] = [
                call.to_message(f"{param}.tool_calls") for call in self.tool_calls
            ]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message

    def _read_content(self, param: str) -> tuple[str, list[dict[str, Any]]]:
        """Return the text, and the address of each image with its place in the text."""
        if not isinstance(self.content, list):
            return self.content or "", []
        text, images = "", []
        for number, part in enumerate(self.content):
            if isinstance(part, TextPart):
                text += part.text
                continue
            check_fields(part.image_url, (), {})
            place = f"{param}.{number}.image_url"
            if self.role != "user":
                raise InvalidError("Only messages of the user have images.", param=place)
            images.append({"url": part.image_url.url, "at": len(text), "param": place})
        return text, images


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    model: str
    row: dict[str, Any]
    """The messages or text to continue, as the tokenizer service takes it."""
    options: GenerationRequest
    """The sampling options; the model and the tokens are filled in later."""
    is_streamed: bool
    wants_usage: bool
    count: int
    """How many answers are wanted."""
    prefix: str = ""
    """What each answer begins with: the prompt, if it is repeated, or the answer that is scored."""
    kind: Literal["prompt", "answer"] = "prompt"
    """How the tokenizer service reads the row: with an answer that is scored, or without."""
    has_tools: bool = False
    """Whether the row has functions, calls or their results, and ends with an example of a call."""

    @property
    def seeds(self) -> list[int | None]:
        """The seed of each answer that has to be generated."""
        if self.options.temperature == 0 or self.options.most == 0:
            return [self.options.seed]  # All answers are equal.
        seed = self.options.seed
        return [None if seed is None else seed + index for index in range(self.count)]


class _GenerationBody(Body):
    model: Annotated[str, Len(1, 1000)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Ge(0), Le(2**20)] | None = None
    n: Annotated[int, Ge(1), Le(8)] | None = None
    """How many answers are wanted; each after the first has the next seed."""
    temperature: Annotated[float, Ge(0), Le(2)] | None = None
    top_p: Annotated[float, Ge(0), Le(1)] | None = None
    stop: Annotated[str, Len(1, 1000)] | (
        Annotated[list[Annotated[str, Len(1, 1000)]], Len(0, 4)] | None
    ) = None
    seed: Annotated[int, Ge(-(2**63)), Le(2**63 - 1)] | None = None

    def _to_request(
        self,
        row: dict[str, Any],
        max_tokens: int | None,
        *,
        top_logprobs: int | None,
        is_turn: bool,
    ) -> GenerationOptions:
        check_fields(self, IGNORED_FIELDS, NEUTRAL_VALUES)
        options = self.stream_options or StreamOptions()
        check_fields(options, (), {})
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        generation_request = GenerationRequest(
            model=self.model,
            ids=[],
            stops=[],
            stop=stop,
            most=max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            # 0 would leave no token to sample; the smallest share keeps the likeliest one.
            top_p=1.0 if self.top_p is None else max(self.top_p, 1e-6),
            seed=self.seed,
            top_logprobs=top_logprobs,
            is_turn=is_turn,
        )
        return GenerationOptions(
            model=self.model,
            row=row,
            options=generation_request,
            is_streamed=bool(self.stream),
            wants_usage=options.include_usage,
            count=self.n or 1,
        )


class ChatCompletionRequest(_GenerationBody):
    messages: Annotated[list[Turn], Len(1, 10_000)]
    max_tokens: Annotated[int, Ge(1), Le(2**20)] | None = None
    max_completion_tokens: Annotated[int, Ge(1), Le(2**20)] | None = None
    """Takes precedence over `max_tokens`; without either, up to the model's context length."""
    logprobs: bool | None = None
    """Whether the log-probability of each token is wanted."""
    top_logprobs: Annotated[int, Ge(0), Le(20)] | None = None
    """How many of the likeliest tokens are wanted in the place of each; needs `logprobs`."""
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Len(0, 128)] | None = None
    """Functions that the answer may call."""
    tool_choice: ToolChoice | None = None
    """Whether it calls one: `auto`, the default, leaves that to the model; with `required` or the
    name of a function, only a call can be written, and its arguments follow their schema."""
    x_studio: ChatStudioOptions | None = None

    def to_request(self) -> GenerationOptions:
        """Return the validated options.

        Raises:
            InvalidError: A field asks for something unsupported.

        """
        if self.top_logprobs and not self.logprobs:
            raise InvalidError(
                "top_logprobs needs logprobs.", hint="Set logprobs to true.", param="top_logprobs"
            )
        messages = [turn.to_message(place) for place, turn in enumerate(self.messages)]
        tool_bodies.name_results(messages)
        asked = self._to_request(
            {"messages": messages},
            self.max_completion_tokens or self.max_tokens,
            top_logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            is_turn=True,
        )
        if self.response_format is not None:
            schema = self.response_format.to_schema()
            options = asked.options.model_copy(update={"json_schema": schema})
            asked = replace(asked, options=options)
        asked = self._add_tools(asked)
        own = self.x_studio or ChatStudioOptions()
        check_fields(own, (), {})
        return asked if own.score is None else self._score(asked, own.score)

    def _add_tools(self, asked: GenerationOptions) -> GenerationOptions:
        tools = tool_bodies.check_tools(self.tools or [], self.tool_choice)
        messages = asked.row["messages"]
        if not tools and not any("tool_calls" in message for message in messages):
            return asked
        if tools and asked.options.json_schema is not None:
            raise InvalidError(
                "An answer cannot both follow a JSON schema and call tools.",
                hint="Leave out response_format, or set tool_choice to none.",
                param="response_format",
            )
        must_call = self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)
        options = asked.options.model_copy(update={"tools": tools, "must_call": must_call})
        shown = [tool.model_dump(exclude_none=True) for tool in self.tools or []] if tools else []
        row = {"messages": [*messages, tool_bodies.example_turn()], "tools": shown}
        return replace(asked, row=row, options=options, has_tools=True)

    def _score(self, asked: GenerationOptions, answer: str) -> GenerationOptions:
        if not self.logprobs:
            raise InvalidError(
                "x_studio.score needs logprobs.", hint="Set logprobs to true.", param="logprobs"
            )
        if asked.has_tools:
            raise InvalidError("An answer with tools cannot be scored.", param="x_studio.score")
        # Where the answer begins is known once it has tokens.
        options = asked.options.model_copy(update={"most": 0, "scored_from": 0})
        messages = [*asked.row["messages"], {"role": "assistant", "content": answer}]
        return replace(
            asked, row={"messages": messages}, options=options, prefix=answer, kind="answer"
        )


class CompletionRequest(_GenerationBody):
    prompt: Annotated[str, Field(min_length=1)] | Annotated[list[str], Len(1, 1)]
    logprobs: Annotated[int, Ge(0), Le(5)] | None = None
    """How many of the likeliest tokens are wanted in the place of each, with log-probabilities."""
    echo: bool | None = None
    """Whether the prompt is repeated before the answer, with log-probabilities if wanted."""

    def to_request(self) -> GenerationOptions:
        """Return the validated options.

        Raises:
            InvalidError: A field asks for something unsupported.

        """
        text = self.prompt if isinstance(self.prompt, str) else self.prompt[0]
        if not text:
            raise InvalidError("The prompt is empty.", param="prompt")
        if self.max_tokens == 0 and not self.echo:
            raise InvalidError(
                "max_tokens is 0, so there would be no answer.",
                hint="Allow at least one token, or set echo to true.",
                param="max_tokens",
            )
        most = _DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens
        asked = self._to_request({"text": text}, most, top_logprobs=self.logprobs, is_turn=False)
        if not self.echo:
            return asked
        scored_from = None if self.logprobs is None else 0
        options = asked.options.model_copy(update={"scored_from": scored_from})
        return replace(asked, options=options, prefix=text)
