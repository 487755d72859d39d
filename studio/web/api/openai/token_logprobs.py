"""Log-probabilities of tokens in the two shapes of OpenAI's API."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from studio.protocols.inference_service import ScoredText, TokenScore


def chat_logprobs(tokens: Sequence[TokenScore]) -> dict[str, Any]:
    """Return log-probabilities as chat completions have them."""
    content = [
        _entry(token) | {"top_logprobs": [_entry(other) for other in token.top]} for token in tokens
    ]
    return {"content": content, "refusal": None}


def _entry(scored: ScoredText) -> dict[str, Any]:
    return {"token": scored.text, "bytes": scored.bytes, "logprob": scored.logprob}


@dataclass(slots=True)
class CompletionLogprobs:
    """Gives log-probabilities as completions have them, with where each token begins."""

    prefix: str = ""
    """The text before the answer, if the tokens begin with those of the prompt."""
    prefix_tokens: int = 0
    _count: int = 0
    _offset: int = 0
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
    )

    def fields(self, tokens: Sequence[TokenScore]) -> dict[str, Any]:
        """Return the log-probabilities of the next tokens of the text."""
        has_top = any(token.top for token in tokens)
        return {
            "tokens": [_legacy_text(token) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [_top(token) for token in tokens] if has_top else None,
            "text_offset": [self._advance(token) for token in tokens],
        }

    def _advance(self, token: TokenScore) -> int:
        if self._count == self.prefix_tokens:
            self._offset = len(self.prefix)
        is_prefix = self._count < self.prefix_tokens
        self._count += 1
        offset = self._offset
        self._offset += len(self._decoder.decode(bytes(token.bytes or [])))
        # A tokenizer may change the prompt: its tokens need not have as many characters.
        return min(offset, len(self.prefix)) if is_prefix else offset


def _top(token: TokenScore) -> dict[str, float | None] | None:
    """Return the alternatives of a token by their text, and the token itself."""
    if token.logprob is None:
        return None
    found: dict[str, float | None] = {}
    for scored in (*token.top, token):
        found.setdefault(_legacy_text(scored), scored.logprob)
    return found


def _legacy_text(scored: ScoredText) -> str:
    """Return the text of a token; a part of a character has a prefix in completions."""
    is_part = scored.bytes is not None and scored.text.encode() != bytes(scored.bytes)
    return f"bytes:{scored.text}" if is_part else scored.text
