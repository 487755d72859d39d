"""Build and send requests, retry them and parse responses: synchronously, and with asyncio."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from http import HTTPStatus
from typing import Any, TypeVar

import httpx2

from studio.client.discovery import ClientSettings, resolve_settings
from studio.client.endpoints import ApiRequest, PagedRequest
from studio.client.errors import api_error, unreachable_error

T = TypeVar("T")
Outcome = httpx2.Response | httpx2.TransportError

RETRY_DELAYS = (0.2, 0.5, 1.0)
"""Seconds to wait before each retry."""

TIMEOUT = httpx2.Timeout(60.0)
_STREAM_TIMEOUT = httpx2.Timeout(60.0, read=45.0)
"""The timeout of a stream, which sends a heartbeat at least every 15 seconds."""


class RetrySchedule:
    """Decides whether and when to retry a request."""

    def __init__(self, call: ApiRequest[Any]) -> None:
        self._left = list(RETRY_DELAYS) if call.is_retryable else []

    def next_delay(self, outcome: Outcome) -> float | None:
        """Return the seconds to wait before the next try, or None to stop."""
        is_passing = isinstance(outcome, httpx2.TransportError) or (
            outcome.status_code == HTTPStatus.BAD_GATEWAY
            or (outcome.status_code == HTTPStatus.SERVICE_UNAVAILABLE and _is_busy(outcome))
        )
        return self._left.pop(0) if is_passing and self._left else None


def client_options(settings: ClientSettings) -> dict[str, Any]:
    """Return the constructor arguments of an httpx2 client of either kind."""
    return {
        "base_url": settings.base_url,
        "headers": settings.headers,
        "timeout": TIMEOUT,
        "trust_env": not settings.is_local,
    }


def build_request(
    client: httpx2.Client | httpx2.AsyncClient,
    call: ApiRequest[Any],
    files: Any,  # noqa: ANN401 -- httpx2's file types
) -> httpx2.Request:
    return client.build_request(
        call.method,
        call.path,
        params=call.params or None,
        json=call.body,
        data=call.form or None,
        files=files,
        headers={"Idempotency-Key": call.key} if call.key else None,
    )


def parse_response(call: ApiRequest[T], outcome: Outcome, url: httpx2.URL) -> T:
    """Return the parsed response.

    Raises:
        ApiError: the studio returned an error.
        UnreachableError: there was no response.

    """
    if isinstance(outcome, httpx2.TransportError):
        raise unreachable_error(url, outcome) from outcome
    if outcome.is_error:
        raise api_error(outcome)
    return call.read(outcome.content)


def build_stream_request(
    client: httpx2.Client | httpx2.AsyncClient, run_id: int, last: str
) -> httpx2.Request:
    headers = {"Last-Event-ID": last} if last else None
    return client.build_request(
        "GET", f"/runs/{run_id}/stream", headers=headers, timeout=_STREAM_TIMEOUT
    )


def _is_busy(response: httpx2.Response) -> bool:
    """Whether a retry may succeed soon: the studio sent Retry-After."""
    return "retry-after" in response.headers


class Transport:
    def __init__(self, url: str | None, token: str | None) -> None:
        self.client = httpx2.Client(**client_options(resolve_settings(url, token)))

    def send(self, call: ApiRequest[T]) -> T:
        schedule = RetrySchedule(call)
        while True:
            outcome = self._ask(call)
            delay = schedule.next_delay(outcome)
            if delay is None:
                return parse_response(call, outcome, self.client.base_url)
            time.sleep(delay)

    def iterate(self, request: PagedRequest[T]) -> Iterator[T]:
        after: int | None = None
        while True:
            page = self.send(request.page(after))
            yield from page.data
            if not page.has_more:
                return
            after = page.next_after

    def _ask(self, call: ApiRequest[Any]) -> Outcome:
        with call.file.open() if call.file else nullcontext() as files:
            try:
                return self.client.send(build_request(self.client, call, files))
            except httpx2.TransportError as error:
                return error


class AsyncTransport:
    def __init__(self, url: str | None, token: str | None) -> None:
        self.client = httpx2.AsyncClient(**client_options(resolve_settings(url, token)))

    async def send(self, call: ApiRequest[T]) -> T:
        schedule = RetrySchedule(call)
        while True:
            outcome = await self._ask(call)
            delay = schedule.next_delay(outcome)
            if delay is None:
                return parse_response(call, outcome, self.client.base_url)
            await asyncio.sleep(delay)

    async def iterate(self, request: PagedRequest[T]) -> AsyncIterator[T]:
        after: int | None = None
        while True:
            page = await self.send(request.page(after))
            for item in page.data:
                yield item
            if not page.has_more:
                return
            after = page.next_after

    async def _ask(self, call: ApiRequest[Any]) -> Outcome:
        with call.file.open() if call.file else nullcontext() as files:
            try:
                return await self.client.send(build_request(self.client, call, files))
            except httpx2.TransportError as error:
                return error
