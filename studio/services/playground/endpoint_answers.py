"""Answers of endpoints that speak OpenAI's API, as they arrive."""

import json
import math
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from studio.errors import InvalidError, StudioError, TooLargeError, UnavailableError
from studio.protocols import chat_endpoints
from studio.protocols.chat_endpoints import Adapted, ChatEndpoint

if TYPE_CHECKING:
    from studio.network.safe_streams import StreamedResponse

ALTERNATIVES = 5
"""How many of the likeliest tokens are wanted in the place of each."""

MAX_ERROR_BYTES = 2**16
MAX_LINE_BYTES = 2**20
MAX_ANSWER_BYTES = 2**24
"""Enough for the longest answer with the probabilities of all its tokens."""

_LAST = b"[DONE]"
_LATER = "Try again later."
_NO_STREAM = "Its address should end in /v1 and speak OpenAI's API."


@dataclass(frozen=True, slots=True)
class Limits:
    silence: float = 120.0
    """Seconds until the next piece of an answer; a model may think before the first."""
    seconds: float = 900.0
    """Seconds until the end of an answer."""


@dataclass(slots=True)
class EndpointAnswer:
    """An answer, as far as it has arrived."""

    model: str = ""
    """As the endpoint names it."""
    left_out: tuple[str, ...] = ()
    """The options that the endpoint refused."""
    calls: list[dict[str, Any]] = field(default_factory=list)
    """The functions that it calls, as a message has them."""
    pieces: int = 0
    reason: str = ""
    """Why it ended, in the endpoint's word; empty while it goes on."""
    tokens: int | None = None
    """How many tokens it has, if the endpoint tells."""

    def add(self, chunk: Mapping[str, Any]) -> "Piece":
        """Add what arrived."""
        self.model = _read_text(chunk.get("model"))[:200] or self.model
        if usage := chunk.get("usage"):
            self.tokens = int(usage["completion_tokens"])
        piece = Piece()
        for choice in chunk.get("choices", [])[:1]:
            self.reason = _read_text(choice.get("finish_reason")) or self.reason
            delta = choice.get("delta") or {}
            for call in delta.get("tool_calls") or []:
                self._add_call(call)
            text = _read_text(delta.get("content"))
            logprobs = (choice.get("logprobs") or {}).get("content") or []
            piece = Piece(text, [_token(entry) for entry in logprobs])
            self.pieces += bool(text)
        return piece

    def _add_call(self, part: Mapping[str, Any]) -> None:
        """Add a part of a call: the first has its name, the next ones more of its arguments."""
        index, called = int(part.get("index", 0)), part.get("function") or {}
        if index == len(self.calls):
            function = {"name": "", "arguments": ""}
            call_id = _read_text(part.get("id")) or f"call_{index}"
            self.calls.append({"id": call_id, "type": "function", "function": function})
        known = self.calls[index]["function"]
        for name in known:
            known[name] += _read_text(called.get(name))


@dataclass(frozen=True, slots=True)
class Piece:
    text: str = ""
    tokens: list[dict[str, Any]] = field(default_factory=list)
    """Its tokens with their log-probabilities, if the endpoint gives them."""


async def stream(
    endpoint: ChatEndpoint,
    body: Mapping[str, Any],
    answer: EndpointAnswer,
    *,
    allow_internal: bool,
    limits: Limits = Limits(),
) -> AsyncGenerator[Piece]:
    """Ask a chat completion, and yield the pieces of its answer, which are added to `answer`.

    Options that the endpoint refuses are left out. Closing the iterator closes the connection.

    Raises:
        InvalidError: The endpoint refuses the key, the model or the request, or its address must
            not be called, or what it sends is no answer.
        TooLargeError: The answer is too long.
        UnavailableError: It cannot be reached, is busy, or breaks off.

    """
    options = dict(body) | {
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "top_logprobs": ALTERNATIVES,
    }
    adapted: Adapted | None = Adapted(options, ())
    while adapted is not None:
        options, left_out = adapted
        # Without probabilities, the page offers none.
        answer.left_out += tuple(name for name in left_out if name in body)
        try:
            events = _events(endpoint, options, limits, allow_internal=allow_internal)
            async with aclosing(events):
                async for event in events:
                    yield _add(endpoint, answer, event)
        except _RefusedError as refusal:
            adapted = chat_endpoints.adapt(options, refusal.content)
            if adapted is None:
                raise _refusal(endpoint, 400, refusal.content) from None
        else:
            adapted = None
    if not answer.reason:
        raise UnavailableError(f"{endpoint.host} broke off in the middle.", hint="Try again.")


class _RefusedError(Exception):
    """The endpoint refused a request with status 400, perhaps because of an option."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.content = content


async def _events(
    endpoint: ChatEndpoint, options: Mapping[str, Any], limits: Limits, *, allow_internal: bool
) -> AsyncGenerator[bytes]:
    """Yield the data of each event of a response; the last one says that it is."""
    from studio.network import safe_streams  # noqa: PLC0415 -- heavy import

    headers = endpoint.headers | {"Accept": "text/event-stream"}
    try:
        async with safe_streams.post(
            endpoint.chat_url,
            json.dumps(options).encode(),
            headers,
            silence=limits.silence,
            seconds=limits.seconds,
            allow_internal=allow_internal,
        ) as response:
            await _check(endpoint, response)
            async with aclosing(_lines(endpoint, response)) as lines:
                async for line in lines:
                    if line.startswith(b"data:"):
                        yield (event := line[len(b"data:") :].strip())
                        if event == _LAST:
                            return
    except (InvalidError, TooLargeError, UnavailableError) as error:
        raise type(error)(error.message, hint=error.hint or _LATER) from error


async def _check(endpoint: ChatEndpoint, response: "StreamedResponse") -> None:
    """Raise an error unless a response is a stream of events."""
    status, kind = response.status, response.headers.get("content-type", "").partition(";")[0]
    if status == 200:  # noqa: PLR2004 -- OK
        if kind.strip().lower() != "text/event-stream":
            raise InvalidError(
                f"{endpoint.host} did not stream an answer: it sent {kind[:50] or 'no type'}.",
                hint=_NO_STREAM,
            )
        return
    content = b""
    async with aclosing(response.iter_bytes()) as pieces:
        async for piece in pieces:
            content += piece
            if len(content) > MAX_ERROR_BYTES:
                break
    if status == 400:  # noqa: PLR2004 -- a bad request
        raise _RefusedError(content)
    raise _refusal(endpoint, status, content, response.headers.get("retry-after", ""))


def _refusal(endpoint: ChatEndpoint, status: int, content: bytes, wait: str = "") -> StudioError:
    """Return the error that a status other than 200 means."""
    host, reason = endpoint.host, chat_endpoints.error_message(content)
    if status in (401, 403):
        return InvalidError(
            f"{host} refused the studio's key: {reason}",
            hint="An administrator can replace it on Settings, Secrets.",
        )
    if status == 404:  # noqa: PLR2004 -- not found
        return InvalidError(f"{host} does not have {endpoint.model}: {reason}", hint=_NO_STREAM)
    if status == 429:  # noqa: PLR2004 -- too many requests
        hint = f"Try again in {wait} s." if wait.isdecimal() and len(wait) < 6 else _LATER  # noqa: PLR2004 -- digits
        return UnavailableError(f"{host} takes no more requests now: {reason}", hint=hint)
    if 300 <= status < 400:  # noqa: PLR2004 -- redirects
        return InvalidError(
            f"{host} redirects to another address, which is not followed.", hint=_NO_STREAM
        )
    if status >= 500:  # noqa: PLR2004 -- its own trouble
        return UnavailableError(f"{host} failed with status {status}: {reason}", hint=_LATER)
    return InvalidError(
        f"{host} refused the request with status {status}: {reason}",
        hint="Change the settings of this column.",
    )


async def _lines(endpoint: ChatEndpoint, response: "StreamedResponse") -> AsyncGenerator[bytes]:
    unread, total = b"", 0
    async with aclosing(response.iter_bytes()) as pieces:
        async for piece in pieces:
            total += len(piece)
            *lines, unread = (unread + piece).split(b"\n")
            for line in lines:
                yield line
            if total > MAX_ANSWER_BYTES or len(unread) > MAX_LINE_BYTES:
                raise TooLargeError(f"{endpoint.host} sent too long an answer.", hint=_LATER)
    if unread:
        yield unread


def _add(endpoint: ChatEndpoint, answer: EndpointAnswer, event: bytes) -> Piece:
    """Add an event to an answer."""
    if event == _LAST:
        answer.reason = answer.reason or "stop"
        return Piece()
    try:
        chunk = json.loads(event.decode())
        if isinstance(chunk, dict) and chunk.get("error"):
            reason = chat_endpoints.error_message(event)
            raise UnavailableError(f"{endpoint.host} did not answer: {reason}", hint=_LATER)
        return answer.add(chunk)
    except UnicodeDecodeError as error:
        raise InvalidError(f"{endpoint.host} sent text that is not UTF-8.", hint=_LATER) from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidError(
            f"{endpoint.host} sent something that is no answer of OpenAI's API.", hint=_NO_STREAM
        ) from error


def _read_text(value: object) -> str:
    if value is not None and not isinstance(value, str):
        raise TypeError
    return value or ""


def _token(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a token of an answer with its log-probability, and the likeliest in its place."""
    likeliest = (entry.get("top_logprobs") or [])[:ALTERNATIVES]
    return _scored(entry) | {"top": [_scored(one) for one in likeliest]}


def _scored(entry: Mapping[str, Any]) -> dict[str, Any]:
    # -9999 stands for "very unlikely" in OpenAI's API.
    logprob = min(max(float(entry["logprob"]), -9999.0), 0.0)
    if math.isnan(logprob):
        raise ValueError
    return {"text": _read_text(entry["token"])[:100], "logprob": logprob}
