"""The text and the bytes of single tokens, as OpenAI's API gives them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from studio.protocols.inference_service import ScoredText

REPLACEMENT_CHARACTER = "�"
"""What a tokenizer decodes for an incomplete character."""

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON lacks; as in OpenAI's API."""

_FALLBACK_BYTE = re.compile("<0x([0-9A-F]{2})>")
"""A token that stands for one byte of a character that the vocabulary lacks."""


def _byte_of_character() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary stands for."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }


_BYTES = _byte_of_character()


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token, and how likely a model finds it."""

    id: int
    logprob: float


class TokenTexts:
    """Gives the texts of tokens; each depends on the tokens before it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._special = frozenset(tokenizer.all_special_ids)
        inner = getattr(tokenizer, "backend_tokenizer", None)
        decoder = getattr(inner, "decoder", None)
        self._is_byte_level = decoder is not None and b"ByteLevel" in decoder.__getstate__()

    def score(self, token: ScoredToken, before: Sequence[int], *, is_open: bool) -> ScoredText:
        """Return a token with its text after other tokens.

        `is_open` says that they end within a character.
        """
        content = self._bytes_of(token.id, before, is_open=is_open)
        if content is None:
            text = str(self._tokenizer.convert_ids_to_tokens(token.id))
        else:
            text = _show(content)
        return ScoredText(
            text=text,
            bytes=None if content is None else list(content),
            logprob=max(token.logprob, LEAST_LOGPROB),
        )

    def _bytes_of(self, token: int, before: Sequence[int], *, is_open: bool) -> bytes | None:
        """Return the bytes of a token; None for a special token, which has no text."""
        if token in self._special:
            return None
        known = self._decode([*before])
        text = self._decode([*before, token])[len(known) :]
        if not is_open and REPLACEMENT_CHARACTER not in text:
            return text.encode()
        part = self._bytes_of_part(token)
        return text.encode() if part is None else part

    def _bytes_of_part(self, token: int) -> bytes | None:
        """Return the bytes of a token that may hold a part of a character, if they are known."""
        name = str(self._tokenizer.convert_ids_to_tokens(token))
        if match := _FALLBACK_BYTE.fullmatch(name):
            return bytes([int(match[1], 16)])
        if self._is_byte_level and all(character in _BYTES for character in name):
            return bytes(_BYTES[character] for character in name)
        return None

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text


def _show(content: bytes) -> str:
    """Return bytes as text; those of an incomplete character by their numbers."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in content)
