"""Send requests and parse responses, also with asyncio; find the studio and its token."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from studio.client.endpoints import ApiRequest, PagedRequest
from studio.client.errors import api_error, unreachable_error

TOKEN_FILE = "api_token"  # noqa: S105 -- a file's name
"""The token file in the home of a studio on this machine, for programs of its owner."""

_LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


class ClientSettings(BaseSettings):
    """Read from `STUDIO_URL`, `STUDIO_TOKEN` and `STUDIO_HOME`."""

    model_config = SettingsConfigDict(env_prefix="STUDIO_", frozen=True, extra="ignore")

    url: str = "http://127.0.0.1:8000"
    token: SecretStr = SecretStr("")
    home: Path = Field(default_factory=lambda: Path.home() / ".mantissa-studio")

    @property
    def base_url(self) -> str:
        return f"{self.url.rstrip('/')}/api/v1"

    @property
    def is_local(self) -> bool:
        """Whether the studio is on this machine, so that proxies are ignored."""
        return httpx2.URL(self.url).host in _LOOPBACK_HOSTS

    @property
    def headers(self) -> dict[str, str]:
        token = self.token.get_secret_value() or self._local_token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _local_token(self) -> str:
        # Never send the token of this machine to another studio.
        path = self.home / TOKEN_FILE
        if not self.is_local or not path.is_file():
            return ""
        return path.read_text(encoding="utf-8").strip()


def resolve_settings(url: str | None, token: str | None) -> ClientSettings:
    """Return the URL and token of the studio; None is replaced by the environment's value."""
    overrides = {"url": url, "token": token}
    return ClientSettings.model_validate(
        ClientSettings().model_dump()
        | {name: value for name, value in overrides.items() if value is not None}
    )


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
