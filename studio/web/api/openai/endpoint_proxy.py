"""Pass requests on to the programs that serve endpoints, and their answers back as they arrive."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel

from studio.db.endpoints import Endpoint
from studio.db.states import EndpointState
from studio.engines.engine import HOST
from studio.errors import (
    InvalidError,
    NotFoundError,
    StudioError,
    TooLargeError,
    TooManyRequestsError,
    UnavailableError,
)
from studio.protocols import chat_endpoints
from studio.services.endpoints import lifecycle, usage
from studio.web.api.openai import endpoint_use
from studio.web.api.openai.disconnects import until_disconnect
from studio.web.api.openai.endpoint_use import EndpointUse, UsingResponse
from studio.web.http import errors
from studio.web.http.errors import status_for

if TYPE_CHECKING:
    from studio.network.safe_streams import StreamedResponse

POLL_SECONDS = 0.1
"""How often to look whether an endpoint has started."""

NOTE_SECONDS = 2.0
"""How long a request waits before it fails because no slot is free; the worker may find one."""

SILENCE_SECONDS = 600.0
"""Seconds until the next piece of an answer. OpenAI's clients wait as long."""

ANSWER_SECONDS = 3600.0

MAX_ANSWER_BYTES = 2**26
_TAIL_BYTES = 64
_LAST = b"[DONE]"

_OK = 200
_ERRORS: Mapping[int, type[StudioError]] = {
    400: InvalidError,
    404: NotFoundError,
    413: TooLargeError,
    422: InvalidError,
    429: TooManyRequestsError,
}
"""What the statuses of engines mean; every other one is trouble of the engine."""

_KEY_REFUSED = frozenset({401, 403})


async def forward(request: Request, use: EndpointUse, path: str, sent: BaseModel) -> Response:
    """Return the answer of an endpoint to a request.

    Raises:
        StudioError: It did not start in time, cannot be reached, or refuses the request.

    """
    body = _to_body(sent)
    pieces = _open(request, use, path, body)
    try:
        first = await until_disconnect(request, _read_first(pieces))
        if body.get("stream"):
            return UsingResponse(_relay(use, first, pieces), use)
        content = await until_disconnect(request, _read(use, first, pieces))
    except BaseException:
        use.close()
        raise
    use.close()
    return Response(content, media_type="application/json")


async def ask(request: Request, use: EndpointUse, sent: BaseModel) -> dict[str, Any]:
    """Return the complete answer of an endpoint to a conversation.

    Raises:
        StudioError: As `forward`.

    """
    response = await forward(request, use, "chat/completions", sent)
    try:
        answer: dict[str, Any] = json.loads(bytes(response.body))
    except ValueError as error:
        raise UnavailableError(f"The endpoint {use.name} sent no JSON.") from error
    return answer


def _to_body(sent: BaseModel) -> dict[str, Any]:
    """Return a request as it came, with the fields that only the engine knows."""
    return sent.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"x_studio"})


async def _open(
    request: Request, use: EndpointUse, path: str, body: Mapping[str, Any]
) -> AsyncGenerator[bytes]:
    """Yield the body of an answer; the first piece comes once the engine has accepted it."""
    from studio.network import safe_streams  # noqa: PLC0415 -- heavy import

    endpoint = await _wait_until_ready(request, use)
    settings = request.app.state.settings
    key = lifecycle.read_key(settings, endpoint)
    try:
        async with safe_streams.post(
            f"http://{HOST}:{endpoint.port}/v1/{path}",
            json.dumps(body).encode(),
            lifecycle.headers(key),
            silence=SILENCE_SECONDS,
            seconds=ANSWER_SECONDS,
            allow_internal=True,  # The studio itself chose the address.
        ) as response:
            if response.status != _OK:
                raise await _refusal(endpoint, response)
            async with aclosing(response.iter_bytes()) as pieces:
                async for piece in pieces:
                    yield piece
    except UnavailableError as error:
        if error.code != UnavailableError.code:
            raise
        raise UnavailableError(
            f"The endpoint {endpoint.name} did not answer: {error.message}",
            hint="Its log on the Serve page says more.",
        ) from error


async def _wait_until_ready(request: Request, use: EndpointUse) -> Endpoint:
    """Return an endpoint once it is ready.

    Raises:
        ConflictError: It was stopped.
        UnavailableError: It failed, or did not start in time, or no slot is free for it.

    """
    limit = request.app.state.settings.endpoint_wait_seconds
    started = time.monotonic()
    while True:
        current = await endpoint_use.read(request, use.id)
        # What changes nothing takes no write lock.
        if current is None or _is_news(current):
            endpoint = await endpoint_use.write(request, lambda db: usage.take(db, use.id))
            if endpoint is not None:
                return endpoint
        waited = time.monotonic() - started
        if current is not None and waited > NOTE_SECONDS and usage.is_blocked(current):
            raise usage.no_slot_error(current)
        if waited > limit:
            raise usage.too_late_error(current or use.endpoint, limit)
        await asyncio.sleep(POLL_SECONDS)


def _is_news(endpoint: Endpoint) -> bool:
    """Whether an endpoint can be used, or never will be, or does not know that a request waits."""
    is_asked = endpoint.requested_at is not None
    is_ready = endpoint.state is EndpointState.READY
    return is_ready or not is_asked or usage.find_obstacle(endpoint) is not None


async def _refusal(endpoint: Endpoint, response: "StreamedResponse") -> StudioError:
    """Return the error that the status of an engine means, with its reason."""
    content = b""
    async with aclosing(response.iter_bytes()) as pieces:
        async for piece in pieces:
            content += piece
            if len(content) > _MAX_ERROR_BYTES:
                break
    reason = chat_endpoints.error_message(content)
    if response.status in _KEY_REFUSED:
        error: StudioError = UnavailableError(
            f"The program of the endpoint {endpoint.name} refused the studio's key.",
            hint="Stop the endpoint, and start it again.",
        )
    else:
        error = _ERRORS.get(response.status, UnavailableError)(reason)
    error.code = f"engine_{response.status}"
    return error


_MAX_ERROR_BYTES = 2**16


async def _read_first(pieces: AsyncIterator[bytes]) -> bytes:
    return await anext(pieces, b"")


async def _read(use: EndpointUse, first: bytes, pieces: AsyncGenerator[bytes]) -> bytes:
    content = bytearray(first)
    async with aclosing(pieces):
        async for piece in pieces:
            content += piece
            if len(content) > MAX_ANSWER_BYTES:
                raise TooLargeError(f"The endpoint {use.name} sent too long an answer.")
    return bytes(content)


async def _relay(
    use: EndpointUse, first: bytes, pieces: AsyncGenerator[bytes]
) -> AsyncIterator[bytes]:
    """Yield an answer as it arrives. An error at this point can only be sent as an event."""
    tail = first
    try:
        async with aclosing(pieces):
            yield first
            async for piece in pieces:
                yield piece
                tail = (tail + piece)[-_TAIL_BYTES:]
        if _LAST not in tail:
            raise UnavailableError(
                f"The endpoint {use.name} broke off in the middle.", hint="Try again."
            )
    except StudioError as error:
        payload = errors.openai_error_response(error, status_for(error)).body
        yield f"\n\ndata: {bytes(payload).decode()}\n\n".encode()
