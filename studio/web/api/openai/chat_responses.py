"""The JSON of chat completions and completions."""

import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from studio.protocols.inference_service import GenerationChunk, GenerationEnd, TokenScore, ToolCall
from studio.web.api.openai.token_logprobs import CompletionLogprobs, chat_logprobs


@dataclass(slots=True)
class Choice:
    """One of the answers to a request, as far as it has arrived."""

    index: int
    prefix: str = ""
    """What it begins with: the prompt, if it is repeated, or a text that is scored."""
    prefix_tokens: int = 0
    """How many of its tokens the prefix has."""
    is_score: bool = False
    """Whether the prefix takes the place of an answer."""
    text: str = ""
    tokens: list[TokenScore] = field(default_factory=list)
    end: GenerationEnd | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)
    """The functions that it calls."""
    offsets: CompletionLogprobs = field(init=False)

    def __post_init__(self) -> None:
        self.text = self.prefix
        self.offsets = CompletionLogprobs(self.prefix, self.prefix_tokens)

    def add(self, chunk: GenerationChunk) -> str:
        """Add a piece. Return its text, unless it belongs to the prefix."""
        new = "" if len(self.tokens) < self.prefix_tokens else chunk.text
        self.text += new
        self.tokens += chunk.tokens
        self.end = chunk.end
        if chunk.end is not None:
            self.calls = [tool_call(call) for call in chunk.end.calls]
        if chunk.end is not None and self.is_score:
            changes = {"reason": "stop", "tokens": self.prefix_tokens}
            self.end = chunk.end.model_copy(update=changes)
        return new


@dataclass(frozen=True, slots=True)
class ResponseBuilder:
    """Builds the JSON of the answers to one request, as a chat completion or a completion."""

    model: str
    is_chat: bool
    has_logprobs: bool
    prompt_tokens: int
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def full_response(self, choices: list[Choice]) -> dict[str, Any]:
        kind = "chat.completion" if self.is_chat else "text_completion"
        shown = [self._full_choice(choice) for choice in choices]
        usage = {"usage": self._usage(choices)}
        return self._response(kind, shown) | usage | _own_fields(choices[0])

    def first_chunk(self, choice: Choice) -> dict[str, Any]:
        content = {"role": "assistant", "content": choice.prefix}
        return self._chunk(choice, content if self.is_chat else choice.prefix)

    def text_chunk(self, choice: Choice, text: str, tokens: list[TokenScore]) -> dict[str, Any]:
        return self._chunk(choice, {"content": text} if self.is_chat else text, tokens)

    def call_chunk(self, choice: Choice) -> dict[str, Any]:
        calls = [call | {"index": place} for place, call in enumerate(choice.calls)]
        return self._chunk(choice, {"tool_calls": calls})

    def last_chunk(self, choice: Choice) -> dict[str, Any]:
        return self._chunk(choice, {} if self.is_chat else "") | _own_fields(choice)

    def usage_chunk(self, choices: list[Choice]) -> dict[str, Any]:
        return self._response(self._chunk_kind, []) | {"usage": self._usage(choices)}

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.is_chat else "text_completion"

    def _full_choice(self, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.calls:
            message |= {"content": choice.text or None, "tool_calls": choice.calls}
        content: dict[str, Any] = {"message": message} if self.is_chat else {"text": choice.text}
        return self._choice(choice, content, choice.tokens if self.has_logprobs else None)

    def _chunk(
        self, choice: Choice, content: dict[str, Any] | str, tokens: list[TokenScore] | None = None
    ) -> dict[str, Any]:
        key = "delta" if self.is_chat else "text"
        shown = self._choice(choice, {key: content}, tokens or None)
        return self._response(self._chunk_kind, [shown])

    def _choice(
        self, choice: Choice, content: dict[str, Any], tokens: list[TokenScore] | None
    ) -> dict[str, Any]:
        logprobs = None
        if tokens is not None:
            logprobs = chat_logprobs(tokens) if self.is_chat else choice.offsets.fields(tokens)
        reason: str | None = choice.end.reason if choice.end else None
        if choice.calls:
            reason = "tool_calls"
        return {"index": choice.index, **content, "logprobs": logprobs, "finish_reason": reason}

    def _response(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        name = f"chatcmpl-{self.id}" if self.is_chat else f"cmpl-{self.id}"
        fields = {"id": name, "object": kind, "created": self.created, "model": self.model}
        return fields | {"choices": choices, "system_fingerprint": None}

    def _usage(self, choices: Iterable[Choice]) -> dict[str, int]:
        written = sum(choice.end.tokens for choice in choices if choice.end)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": written,
            "total_tokens": self.prompt_tokens + written,
        }


def tool_call(call: ToolCall) -> dict[str, Any]:
    """Return a call as a message has it, with a new id."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def _own_fields(choice: Choice) -> dict[str, Any]:
    """Return the number format of the computation, which OpenAI's API has no field for."""
    computed_in = choice.end.computed_in if choice.end else ""
    return {"x_studio": {"computed_in": computed_in}} if computed_in else {}
