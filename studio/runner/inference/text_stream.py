"""The text of an answer, as its tokens arrive."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

_REPLACEMENT_CHARACTER = "�"
"""What a tokenizer decodes for an incomplete character."""


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

    def add(self, token: int) -> str:
        """Add a token. Return the text that is final."""
        self._ids.append(token)
        new = self._decode_new()
        if new.endswith(_REPLACEMENT_CHARACTER):
            return ""
        self._prefix_start, self._decoded = self._decoded, len(self._ids)
        return self._emit(new)

    def finish(self) -> str:
        """Return the withheld text, now that nothing follows."""
        rest = self._emit(self._decode_new()) + self._withheld
        self._withheld = ""
        return "" if self.has_stopped else rest

    def _decode_new(self) -> str:
        decoded = self._decode(self._ids[self._prefix_start : self._decoded])
        return self._decode(self._ids[self._prefix_start :])[len(decoded) :]

    def _decode(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def _emit(self, new: str) -> str:
        if self.has_stopped:
            return ""
        text = self._withheld + new
        if self.strips_start:
            text = text.lstrip()
            self.strips_start = not text
        stop_index = min(
            (index for stop in self.stop if (index := text.find(stop)) >= 0), default=-1
        )
        if stop_index >= 0:
            self.has_stopped, self._withheld = True, ""
            return text[:stop_index]
        withheld = max((_partial_stop_length(text, stop) for stop in self.stop), default=0)
        self._withheld = text[len(text) - withheld :]
        return text[: len(text) - withheld]


def _partial_stop_length(text: str, stop: str) -> int:
    """Return the length of the longest prefix of a stop sequence that the text ends with."""
    limit = min(len(text), len(stop) - 1)
    return next((size for size in range(limit, 0, -1) if text.endswith(stop[:size])), 0)
