"""Redact secrets: replace them with `***` in logs and in displayed text."""

import json
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, unquote, urlsplit

MASK = "***"
MIN_SECRET_LENGTH = 6
"""Shorter values are not redacted, because they occur in ordinary words."""
_MIN_SECRET_PATH_LENGTH = 16
"""A URL path of at least this many characters may be a secret, as in many webhook URLs."""

_TOKEN_PATTERN = re.compile(
    r"\b(?:hf_[a-z0-9]{16,}|sft_\d+_[\w-]{20,}|whsec_[a-z0-9+/=]{16,})"
    r"|(?<=\bBearer )[\w.~+/=-]{8,}"
    r"|(?<=://)[^\s/:@\"']*:[^\s/@\"']+(?=@)",
    re.ASCII | re.IGNORECASE,
)
"""Text that looks like a secret from any source: tokens by their prefixes, bearer tokens, and
passwords in URLs."""

_QUERY_SECRET_PATTERN = re.compile(
    r"([?&](?:access_token|token|api_key|key|secret|password|signature)=)[^\s&\"']+", re.IGNORECASE
)
"""Query parameters whose names mark them as secret."""

_registered_secrets: dict[str, None] = {}
_secret_patterns: list[re.Pattern[str]] = []


def register_secrets(values: Iterable[str]) -> None:
    """Redact these values from now on, in all their encodings."""
    unregistered = {
        spelling: None
        for value in values
        for spelling in _spellings(value)
        if spelling not in _registered_secrets
    }
    if not unregistered:
        return
    _registered_secrets.update(unregistered)
    longest = sorted(_registered_secrets, key=len, reverse=True)
    # One assignment, so that other threads see the old pattern or the new one.
    _secret_patterns[:] = [re.compile("|".join(map(re.escape, longest)))]


def redact(text: str) -> str:
    """Return the text with secrets redacted."""
    for pattern in _secret_patterns:
        text = pattern.sub(MASK, text)
    return _QUERY_SECRET_PATTERN.sub(rf"\1{MASK}", _TOKEN_PATTERN.sub(MASK, text))


def redact_value(value: Any) -> Any:  # noqa: ANN401 -- any JSON value
    """Return the value with secrets redacted in its strings; numbers stay numbers."""
    match value:
        case None | bool() | int() | float():
            return value
        case dict():
            return {redact(str(key)): redact_value(item) for key, item in value.items()}
        case list() | tuple():
            return [redact_value(item) for item in value]
        case _:
            return redact(str(value))


class RedactingStream:
    """A text stream that redacts secrets."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401 -- sys.stdout or a replacement
        self._inner = inner

    def write(self, text: str) -> int:
        self._inner.write(redact(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- delegates to the stream
        return getattr(self._inner, name)


def _spellings(value: str) -> set[str]:
    """Return all encodings of a value and of the secret parts in it."""
    parts = {value}
    if "://" in value:
        url = urlsplit(value)
        parts |= {url.password or "", unquote(url.password or "")}
        path = f"{url.path}?{url.query}".strip("/?")
        parts |= {path} if len(path) >= _MIN_SECRET_PATH_LENGTH else set()
    spellings = {
        spelling
        for part in parts
        for spelling in (part, json.dumps(part)[1:-1], quote(part, safe=""))
    }
    return {part for part in spellings if len(part) >= MIN_SECRET_LENGTH}
