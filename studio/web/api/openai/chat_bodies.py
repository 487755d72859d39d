"""What chat completions and completions are asked: the fields of their bodies."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len
from pydantic import Field

from studio.errors import InvalidError
from studio.protocols.inference_service import GenerationRequest
from studio.web.api.openai.schemas import Body, check_fields

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
    "echo": (False,),
    "frequency_penalty": (0, 0.0),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False, 0),
    "modalities": (["text"],),
    "n": (1,),
    "presence_penalty": (0, 0.0),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "audio": (),
    "prediction": (),
    "verbosity": (),
    "web_search_options": (),
}
"""Unsupported fields, each with the values that change nothing; any other value is rejected."""

_MESSAGE_NEUTRAL_VALUES: dict[str, Collection[object]] = {
    "tool_calls": ([],),
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


class Turn(Body):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Len(1, 1000)]
    name: str | None = None
    """Accepted and ignored: chat templates do not use it."""

    def to_message(self) -> dict[str, str]:
        check_fields(self, (), _MESSAGE_NEUTRAL_VALUES)
        if isinstance(self.content, str):
            text = self.content
        else:
            text = "".join(part.text for part in self.content)
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": text}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    model: str
    row: dict[str, Any]
    """The messages or text to continue, as the tokenizer service takes it."""
    options: GenerationRequest
    """The sampling options; the model and the tokens are filled in later."""
    is_streamed: bool
    wants_usage: bool


class _GenerationBody(Body):
    model: Annotated[str, Len(1, 1000)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Ge(1), Le(2**20)] | None = None
    temperature: Annotated[float, Ge(0), Le(2)] | None = None
    top_p: Annotated[float, Ge(0), Le(1)] | None = None
    stop: Annotated[str, Len(1, 1000)] | (
        Annotated[list[Annotated[str, Len(1, 1000)]], Len(0, 4)] | None
    ) = None
    seed: Annotated[int, Ge(-(2**63)), Le(2**63 - 1)] | None = None

    def _to_request(
        self, row: dict[str, Any], max_tokens: int | None, *, is_turn: bool
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
            is_turn=is_turn,
        )
        return GenerationOptions(
            model=self.model,
            row=row,
            options=generation_request,
            is_streamed=bool(self.stream),
            wants_usage=options.include_usage,
        )


class ChatCompletionRequest(_GenerationBody):
    messages: Annotated[list[Turn], Len(1, 10_000)]
    max_completion_tokens: Annotated[int, Ge(1), Le(2**20)] | None = None
    """Takes precedence over `max_tokens`; without either, up to the model's context length."""

    def to_request(self) -> GenerationOptions:
        """Return the validated options.

        Raises:
            InvalidError: A field asks for something unsupported.

        """
        row = {"messages": [turn.to_message() for turn in self.messages]}
        max_tokens = self.max_completion_tokens or self.max_tokens
        return self._to_request(row, max_tokens, is_turn=True)


class CompletionRequest(_GenerationBody):
    prompt: Annotated[str, Field(min_length=1)] | Annotated[list[str], Len(1, 1)]

    def to_request(self) -> GenerationOptions:
        """Return the validated options.

        Raises:
            InvalidError: A field asks for something unsupported.

        """
        text = self.prompt if isinstance(self.prompt, str) else self.prompt[0]
        if not text:
            raise InvalidError("The prompt is empty.", param="prompt")
        return self._to_request(
            {"text": text}, self.max_tokens or _DEFAULT_COMPLETION_TOKENS, is_turn=False
        )
