"""Ask a model behind an address that speaks OpenAI's API, and wait for its whole answer."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from studio.errors import InvalidError, UnavailableError
from studio.network import safe_http
from studio.protocols import chat_endpoints
from studio.protocols.chat_endpoints import ChatEndpoint

PARALLEL = 4
"""Requests at a time."""
SECONDS = 120.0
"""How long one reply may take."""
RETRIES = (1.0, 4.0, 16.0)
"""Seconds before each further try, after a failure that may pass."""
MAX_REPLY_BYTES = 2**20

_LATER = "Try again later, or choose another judge."


class RefusedQuestionError(InvalidError):
    """The endpoint refused a question. It may be this one alone."""


@dataclass(frozen=True, slots=True)
class EndpointReply:
    text: str
    tokens: int
    """How many tokens it read and wrote; 0 if the endpoint does not tell."""


@dataclass(slots=True)
class EndpointClient:
    """A judge behind an endpoint. Several threads may ask it at once."""

    endpoint: ChatEndpoint
    allow_internal: bool
    hint: str
    """What to do if the endpoint refuses its key or its model."""
    retries: Sequence[float] = RETRIES
    _refused: dict[str, str] = field(default_factory=dict)
    """Options that the endpoint refused before: their new names, or nothing."""

    def ask(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> EndpointReply:
        """Return the reply to messages; try again what may pass.

        Raises:
            RefusedQuestionError: the endpoint refuses this question.
            InvalidError: it refuses the key or the model, or sends no chat completion.
            UnavailableError: it cannot be reached.

        """
        for pause in self.retries:
            try:
                return self._ask_once(messages, options)
            except UnavailableError:
                time.sleep(pause)
        return self._ask_once(messages, options)

    def _ask_once(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> EndpointReply:
        status, content = self._post_adapted(messages, options)
        if status == 429 or status >= 500:  # noqa: PLR2004 -- too many requests, or its own trouble
            raise UnavailableError(f"The judge answered with status {status}.", hint=_LATER)
        if status in (400, 413, 422):
            raise RefusedQuestionError(
                f"Refused with status {status}: {chat_endpoints.error_message(content)}"
            )
        reason = chat_endpoints.error_message(content)
        if status != 200:  # noqa: PLR2004 -- refused
            raise InvalidError(
                f"The judge refused the request with status {status}: {reason}", hint=self.hint
            )
        return _read_reply(content)

    def _post_adapted(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> tuple[int, bytes]:
        """Post a question without the options that the endpoint refuses."""
        known = dict(self._refused)  # Other threads may add to it meanwhile.
        sent = {known.get(name, name): value for name, value in options.items()}
        sent.pop("", None)
        while True:
            question = {"model": self.endpoint.model, "messages": list(messages)}
            status, content = self._post(question | sent)
            adapted = chat_endpoints.adapt(sent, content) if status == 400 else None  # noqa: PLR2004 -- a bad request
            if adapted is None:
                return status, content
            for name in sent.keys() - adapted.options.keys():
                new = chat_endpoints.NEW_NAMES.get(name, "")
                self._refused[name] = new if new in adapted.options else ""
            sent = adapted.options

    def _post(self, payload: dict[str, Any]) -> tuple[int, bytes]:
        opened = safe_http.open_url(
            self.endpoint.chat_url,
            self.endpoint.headers | {"Accept": "application/json"},
            seconds=SECONDS,
            allow_internal=self.allow_internal,
            body=json.dumps(payload).encode(),
        )
        with opened as response:
            content = b""
            for piece in response.iter_bytes():
                content += piece
                if len(content) > MAX_REPLY_BYTES:
                    raise InvalidError("The judge's reply is too long.", hint=_LATER)
            return response.status, content


def _read_reply(content: bytes) -> EndpointReply:
    """Return what the model wrote.

    Raises:
        InvalidError: the response is none of OpenAI's API.

    """
    try:
        response = json.loads(content)
        text = response["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise InvalidError(
            "The judge's response is not that of a chat completion.",
            hint="The address should end in /v1 and speak OpenAI's API.",
        ) from error
    usage = response.get("usage")
    tokens = usage.get("total_tokens") if isinstance(usage, Mapping) else None
    return EndpointReply(
        text if isinstance(text, str) else "", tokens if isinstance(tokens, int) else 0
    )
