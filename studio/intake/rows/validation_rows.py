"""Which rows a run holds out for validation, and how a text becomes a prompt."""

import random

_MAX_PROMPT_CHARS = 200
"""Limit for a text's prompt, in characters: half of the text, but no more than this."""


def validation_indices(count: int, share: float, seed: int) -> set[int]:
    """Return the indices of the validation rows among `count` rows."""
    held_out = min(count, max(1, round(count * share)))
    return set(random.Random(seed).sample(range(count), held_out))  # noqa: S311 -- no secret


def split_text(text: str) -> tuple[str, str]:
    """Split a text into a prompt and its continuation, at a space if it has one."""
    middle = min(len(text) // 2, _MAX_PROMPT_CHARS) or len(text)
    split_at = max(text.rfind(" ", 1, middle), text.rfind("\n", 1, middle))
    split_at = split_at if split_at > 0 else middle
    return text[:split_at], text[split_at:].strip()
