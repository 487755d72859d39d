"""The JSON of chat completions and completions."""

import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from studio.protocols.inference_service import GenerationEnd


@dataclass(frozen=True, slots=True)
class ResponseBuilder:
    """Builds the JSON of one answer, as a chat completion or a completion."""

    model: str
    is_chat: bool
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def full_response(self, text: str, end: GenerationEnd, prompt: int) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        content: dict[str, Any] = {"message": message} if self.is_chat else {"text": text}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": end.reason}
        kind = "chat.completion" if self.is_chat else "text_completion"
        return (
            self._response(kind, [choice])
            | {"usage": _token_usage(end, prompt)}
            | _computed_in(end)
        )

    def first_chunk(self) -> dict[str, Any]:
        return self._chunk({"role": "assistant", "content": ""} if self.is_chat else "")

    def text_chunk(self, text: str) -> dict[str, Any]:
        return self._chunk({"content": text} if self.is_chat else text)

    def last_chunk(self, end: GenerationEnd) -> dict[str, Any]:
        return self._chunk({} if self.is_chat else "", end.reason) | _computed_in(end)

    def usage_chunk(self, end: GenerationEnd, prompt: int) -> dict[str, Any]:
        return self._response(self._chunk_kind, []) | {"usage": _token_usage(end, prompt)}

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.is_chat else "text_completion"

    def _chunk(self, content: dict[str, str] | str, reason: str | None = None) -> dict[str, Any]:
        key = "delta" if self.is_chat else "text"
        choice = {"index": 0, key: content, "logprobs": None, "finish_reason": reason}
        return self._response(self._chunk_kind, [choice])

    def _response(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        name = f"chatcmpl-{self.id}" if self.is_chat else f"cmpl-{self.id}"
        fields = {"id": name, "object": kind, "created": self.created, "model": self.model}
        return fields | {"choices": choices, "system_fingerprint": None}


def _computed_in(end: GenerationEnd) -> dict[str, Any]:
    """Return the number format of the computation, which OpenAI's API has no field for."""
    return {"x_studio": {"computed_in": end.computed_in}} if end.computed_in else {}


def _token_usage(end: GenerationEnd, prompt: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": end.tokens,
        "total_tokens": prompt + end.tokens,
    }
