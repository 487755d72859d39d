"""The text of an answer, as its tokens arrive."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from studio.protocols.inference_service import MAX_LINE_TOKENS, GenerationChunk, TokenScore
from studio.runner.inference.token_text import REPLACEMENT_CHARACTER, ScoredToken, TokenTexts

_CONTEXT_TOKENS = 8
"""Enough for a word before the text; characters have up to four tokens."""


@dataclass(frozen=True, slots=True)
class Likelihood:
    """How likely a model found a token, and which ones were likeliest."""

    logprob: float | None
    top: Sequence[ScoredToken] = ()


@dataclass(slots=True)
class TextStream:
    """Decodes tokens to text incrementally; withholds what may be the start of a stop sequence."""

    tokenizer: PreTrainedTokenizerBase
    stop: Sequence[str]
    strips_start: bool
    """Whether to drop leading spaces."""
    has_stopped: bool = False
    _ids: list[int] = field(default_factory=list)
    _decoded: int = 0
    """How many tokens have been decoded."""
    _prefix_start: int = 0
    """Start of the previously decoded piece: some tokenizers add a space depending on context."""
    _withheld: str = ""
    _texts: TokenTexts | None = None
    _scores: deque[tuple[int, TokenScore]] = field(default_factory=deque)
    """The tokens of text that is not final, each with the position where its text starts."""
    _length: int = 0
    """How many characters have been decoded."""
    _final: int = 0
    """How many of them are final."""

    def start_after(self, ids: Sequence[int]) -> None:
        """Set the tokens that the text continues: without them, some tokenizers omit its space."""
        known = list(ids[-_CONTEXT_TOKENS:])
        if not self._decode(known).endswith(REPLACEMENT_CHARACTER):
            self._ids, self._decoded = known, len(known)

    def add(self, token: int, likelihood: Likelihood | None = None) -> str:
        """Add a token, with how likely it was if wanted. Return the text that is final."""
        if likelihood is not None:
            self._scores.append((self._length, self._score(token, likelihood)))
        self._ids.append(token)
        new = self._decode_new()
        if new.endswith(REPLACEMENT_CHARACTER):
            return ""
        self._prefix_start, self._decoded = self._decoded, len(self._ids)
        return self._emit(new)

    def finish(self) -> str:
        """Return the withheld text, now that nothing follows."""
        rest = self._emit(self._decode_new()) + self._withheld
        self._final += len(self._withheld)
        self._withheld = ""
        return "" if self.has_stopped else rest

    def take_tokens(self) -> list[TokenScore]:
        """Return the tokens whose text has become final since the last call, if only in part."""
        taken: list[TokenScore] = []
        while self._scores and self._is_final(*self._scores[0]):
            taken.append(self._scores.popleft()[1])
        return taken

    def _is_final(self, start: int, score: TokenScore) -> bool:
        return start < self._final or (not score.bytes and start <= self._final)

    def _score(self, token: int, likelihood: Likelihood) -> TokenScore:
        if self._texts is None:
            self._texts = TokenTexts(self.tokenizer)
        texts, is_open = self._texts, self._decoded < len(self._ids)
        before = self._ids[self._prefix_start :]
        own = texts.score(ScoredToken(token, likelihood.logprob or 0.0), before, is_open=is_open)
        return TokenScore(
            id=token,
            text=own.text,
            bytes=own.bytes,
            logprob=None if likelihood.logprob is None else own.logprob,
            top=[texts.score(other, before, is_open=is_open) for other in likelihood.top],
        )

    def _decode_new(self) -> str:
        decoded = self._decode(self._ids[self._prefix_start : self._decoded])
        return self._decode(self._ids[self._prefix_start :])[len(decoded) :]

    def _decode(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def _emit(self, new: str) -> str:
        if self.has_stopped:
            return ""
        self._length += len(new)
        text = self._withheld + new
        if self.strips_start:
            text = text.lstrip()
            self.strips_start = not text
        stop_index = min(
            (index for stop in self.stop if (index := text.find(stop)) >= 0), default=-1
        )
        if stop_index >= 0:
            self.has_stopped, self._withheld = True, ""
            self._final = self._length - len(text) + stop_index
            return text[:stop_index]
        withheld = max((partial_stop_length(text, stop) for stop in self.stop), default=0)
        self._withheld = text[len(text) - withheld :]
        self._final = self._length - withheld
        return text[: len(text) - withheld]


def send_piece(new: str, text: TextStream, send: Callable[[GenerationChunk], None]) -> None:
    """Send new text of an answer with its tokens, on several lines if those are many."""
    tokens = text.take_tokens()
    if new or tokens:
        send(GenerationChunk(text=new, tokens=tokens[:MAX_LINE_TOKENS]))
    for start in range(MAX_LINE_TOKENS, len(tokens), MAX_LINE_TOKENS):
        send(GenerationChunk(tokens=tokens[start : start + MAX_LINE_TOKENS]))


def partial_stop_length(text: str, stop: str) -> int:
    """Return the length of the longest prefix of a stop sequence that the text ends with."""
    limit = min(len(text), len(stop) - 1)
    return next((size for size in range(limit, 0, -1) if text.endswith(stop[:size])), 0)
