"""Responses that are read as they arrive, without a thread, from addresses that are checked.

The same protection as in `safe_http`: a host is resolved once, all of its addresses are checked,
and the connection goes to one of them. No redirect is followed, and no proxy is used.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import httpcore2

from studio.errors import InvalidError, UnavailableError
from studio.network import safe_http


@dataclass(frozen=True, slots=True)
class StreamedResponse:
    """A response whose body has not been read yet."""

    status: int
    headers: Mapping[str, str]
    """By names in lower case."""
    _body: AsyncIterator[bytes]
    _silence: float
    _end: float

    async def iter_bytes(self) -> AsyncGenerator[bytes]:
        """Yield the body as it arrives.

        Raises:
            UnavailableError: The connection broke off, nothing came for too long, or the whole took
                too long.

        """
        while True:
            left = self._end - time.monotonic()
            try:
                async with asyncio.timeout(min(left, self._silence)):
                    piece = await anext(self._body, b"")
            except (TimeoutError, httpcore2.TimeoutException) as error:
                raise _too_late() from error
            except (httpcore2.NetworkError, httpcore2.ProtocolError) as error:
                raise UnavailableError("The connection broke off.") from error
            if not piece:
                return
            yield piece


@asynccontextmanager
async def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    silence: float,
    seconds: float,
    allow_internal: bool,
) -> AsyncIterator[StreamedResponse]:
    """Post to a URL. The connection is closed when the block ends, also in the middle.

    `silence` is how many seconds may pass before the next piece, `seconds` before the last one.

    Raises:
        InvalidError: The URL is malformed, or leads to a blocked address.
        UnavailableError: It cannot be reached, or took too long.

    """
    safe_http.validate_url(url)
    end = time.monotonic() + seconds
    context = await asyncio.to_thread(ssl.create_default_context) if url[:5] == "https" else None
    backend = _CheckedBackend(allow_internal=allow_internal)
    async with AsyncExitStack() as stack:
        pool = httpcore2.AsyncConnectionPool(context, network_backend=backend)
        await stack.enter_async_context(pool)
        request = pool.stream(
            "POST",
            url,
            headers=[*headers.items()],
            content=body,
            extensions={"timeout": {"connect": safe_http.CONNECT_SECONDS}},
        )
        try:
            async with asyncio.timeout(silence):
                response = await stack.enter_async_context(request)
        except (TimeoutError, httpcore2.TimeoutException) as error:
            raise _too_late() from error
        except (OSError, UnicodeError, httpcore2.NetworkError, httpcore2.ProtocolError) as error:
            raise UnavailableError(f"It could not be reached: {_reason(error)}.") from error
        named = {name.decode().lower(): text.decode("latin-1") for name, text in response.headers}
        yield StreamedResponse(response.status, named, response.aiter_stream(), silence, end)


def _too_late() -> UnavailableError:
    return UnavailableError("It did not answer in time.")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or "the connection failed"


class _CheckedBackend(httpcore2.AnyIOBackend):
    """Connects to addresses that have been checked, and to no other."""

    def __init__(self, *, allow_internal: bool) -> None:
        self.allow_internal = allow_internal

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 -- as in the base class
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        found = await asyncio.to_thread(
            safe_http.resolve_and_check, host, port, allow_internal=self.allow_internal
        )
        failure: Exception = InvalidError("This host has no address.")
        for _family, (address, *_rest) in found:
            try:
                return await super().connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure
