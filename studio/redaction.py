"""What a process knows to be secret, kept out of what it writes and shows: `***` in its place."""

import json
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, unquote, urlsplit

MASK = "***"
MIN_SECRET_LENGTH = 6
"""Less than this is no secret, and stands in every other word."""
_MIN_SECRET_PATH_LENGTH = 16
"""An address's path of so many signs may be what lets one in, as with many chats' webhooks."""

_TOKEN_PATTERN = re.compile(
    r"\b(?:hf_[a-z0-9]{16,}|sft_\d+_[\w-]{20,}|whsec_[a-z0-9+/=]{16,})"
    r"|(?<=\bBearer )[\w.~+/=-]{8,}"
    r"|(?<=://)[^\s/:@\"']*:[^\s/@\"']+(?=@)",
    re.ASCII | re.IGNORECASE,
)
"""What looks like somebody's secret, whoever told it: tokens by their beginnings, what is shown to
be let in, and passwords in addresses."""

_QUERY_SECRET_PATTERN = re.compile(
    r"([?&](?:access_token|token|api_key|key|secret|password|signature)=)[^\s&\"']+", re.IGNORECASE
)
"""What an address itself calls secret."""

_registered_secrets: dict[str, None] = {}
_secret_patterns: list[re.Pattern[str]] = []


def register_secrets(values: Iterable[str]) -> None:
    """Keep these values out of sight from now on, however they are written."""
    new = {
        one: None for value in values for one in _spellings(value) if one not in _registered_secrets
    }
    if not new:
        return
    _registered_secrets.update(new)
    longest = sorted(_registered_secrets, key=len, reverse=True)
    # One assignment, so that other threads see the old pattern or the new one.
    _secret_patterns[:] = [re.compile("|".join(map(re.escape, longest)))]


def redact(text: str) -> str:
    """Return a text without what is secret."""
    for pattern in _secret_patterns:
        text = pattern.sub(MASK, text)
    return _QUERY_SECRET_PATTERN.sub(rf"\1{MASK}", _TOKEN_PATTERN.sub(MASK, text))


def redact_value(value: Any) -> Any:  # noqa: ANN401 -- whatever JSON can hold
    """Return a value without what is secret in its texts; numbers stay numbers."""
    match value:
        case None | bool() | int() | float():
            return value
        case dict():
            return {redact(str(key)): redact_value(one) for key, one in value.items()}
        case list() | tuple():
            return [redact_value(one) for one in value]
        case _:
            return redact(str(value))


class RedactingStream:
    """A stream of text that lets nothing secret through."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401 -- sys.stdout, or what stands in for it
        self._inner = inner

    def write(self, text: str) -> int:
        self._inner.write(redact(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- all else is the stream's own
        return getattr(self._inner, name)


def _spellings(value: str) -> set[str]:
    """Return how a value may be written, and what in it is secret by itself."""
    parts = {value}
    if "://" in value:
        where = urlsplit(value)
        parts |= {where.password or "", unquote(where.password or "")}
        path = f"{where.path}?{where.query}".strip("/?")
        parts |= {path} if len(path) >= _MIN_SECRET_PATH_LENGTH else set()
    written = {
        spelt for one in parts for spelt in (one, json.dumps(one)[1:-1], quote(one, safe=""))
    }
    return {one for one in written if len(one) >= MIN_SECRET_LENGTH}
