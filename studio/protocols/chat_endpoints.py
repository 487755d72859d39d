"""Models behind addresses that speak OpenAI's API: how they are named, and what they refuse."""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

from annotated_types import Len
from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter, ValidationError

from studio import redaction
from studio.errors import InvalidError, StudioError
from studio.network import safe_http
from studio.schemas.validation_errors import field_errors
from studio.settings import Settings

JUDGE = "judge"
"""The name of the judge's endpoint."""

NAME_PATTERN = r"[A-Za-z0-9_.-]{1,40}"
MAX_ENDPOINTS = 50

_EXAMPLE = '[{"name": "large", "url": "https://api.example.com/v1", "model": "…", "key": "…"}]'


class ChatEndpoint(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")]
    """What people choose it by."""
    url: Annotated[str, Len(1, 2000)]
    """Up to /v1, without what follows."""
    model: Annotated[str, Len(1, 200)]
    """The model's name at that address."""
    key: SecretStr = SecretStr("")
    """Empty if it needs none."""

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def chat_url(self) -> str:
        return f"{self.url.rstrip('/')}/chat/completions"

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a request in JSON, with the key."""
        headers = {"Content-Type": "application/json"}
        if key := self.key.get_secret_value():
            headers["Authorization"] = f"Bearer {key}"
        return headers


_LIST = TypeAdapter(Annotated[list[ChatEndpoint], Len(0, MAX_ENDPOINTS)])


def parse(text: str) -> list[ChatEndpoint]:
    """Return the endpoints in a JSON list, and redact their keys from now on.

    Raises:
        InvalidError: It is no list of endpoints with different names.

    """
    if not text.strip():
        return []
    try:
        endpoints = _LIST.validate_python(json.loads(text))
        for endpoint in endpoints:
            safe_http.validate_url(endpoint.url)
    except ValidationError as error:
        raise _malformed(str(field_errors(error.errors())[0])) from None  # It holds the keys.
    except (ValueError, RecursionError):
        raise _malformed("this is not valid JSON.") from None
    except StudioError as error:
        raise _malformed(error.message) from None
    if len({endpoint.name for endpoint in endpoints}) < len(endpoints):
        raise _malformed("two have the same name.")
    redaction.register_secrets([endpoint.key.get_secret_value() for endpoint in endpoints])
    return endpoints


def list_configured(settings: Settings) -> list[ChatEndpoint]:
    """Return the endpoints of settings that hold their secrets: those of the operator, the judge's.

    Raises:
        InvalidError: The setting is malformed.

    """
    found = parse(settings.endpoints.get_secret_value())
    if not (settings.judge_url and settings.judge_model) or any(one.name == JUDGE for one in found):
        return found
    key = SecretStr(settings.judge_key.get_secret_value())
    judge = ChatEndpoint(name=JUDGE, url=settings.judge_url, model=settings.judge_model, key=key)
    return [*found, judge]


def _malformed(reason: str) -> InvalidError:
    return InvalidError(
        f"The list of endpoints is wrong: {reason}", hint=f"Write it like this: {_EXAMPLE}"
    )


class Adapted(NamedTuple):
    options: dict[str, Any]
    left_out: tuple[str, ...]
    """What the endpoint refused."""


_OPTIONS = (
    *("top_logprobs", "logprobs", "stream_options", "seed", "temperature", "top_p"),
    "response_format",
)
"""Options that a model may refuse, although OpenAI's API has them."""


def adapt(options: Mapping[str, Any], refusal: bytes) -> Adapted | None:
    """Return options without the one that an endpoint refuses, or under its new name; else None."""
    message = refusal.decode(errors="replace")
    if "max_completion_tokens" in message and "max_tokens" in options:
        renamed = {NEW_NAMES.get(name, name): value for name, value in options.items()}
        return Adapted(renamed, ())
    for name in _OPTIONS:
        if name in options and re.search(rf"\b{name}\b", message):
            without = {name, "top_logprobs"} if name == "logprobs" else {name}
            left = {key: value for key, value in options.items() if key not in without}
            return Adapted(left, (name,))
    return None


NEW_NAMES = {"max_tokens": "max_completion_tokens"}
"""Options that newer models have under another name."""


def error_message(content: bytes) -> str:
    """Return why an endpoint refused a request, in its own words, without secrets."""
    try:
        message = json.loads(content)["error"]["message"]
    except (ValueError, LookupError, TypeError, RecursionError):
        message = content.decode(errors="replace").strip()
    return redaction.redact(str(message))[:300] or "no reason given."
