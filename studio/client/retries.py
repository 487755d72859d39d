"""Build requests, parse responses and schedule retries, for both clients."""

from http import HTTPStatus
from typing import Any, TypeVar

import httpx2

from studio.client.discovery import ClientSettings
from studio.client.errors import api_error, unreachable_error
from studio.client.request import ApiRequest

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
