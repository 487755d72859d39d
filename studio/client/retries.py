"""How a call is put on the wire and tried again; the same, whether one waits or awaits."""

from http import HTTPStatus
from typing import Any, TypeVar

import httpx2

from studio.client.discovery import ClientSettings
from studio.client.errors import api_error, unreachable_error
from studio.client.request import ApiRequest

T = TypeVar("T")
Outcome = httpx2.Response | httpx2.TransportError

RETRY_DELAYS = (0.2, 0.5, 1.0)
"""Seconds before each further try."""

TIMEOUT = httpx2.Timeout(60.0)
_STREAM_TIMEOUT = httpx2.Timeout(60.0, read=45.0)
"""Of a stream, which says at least every 15 seconds that it lives."""


class RetrySchedule:
    """What came of a call, and whether it is worth another try."""

    def __init__(self, call: ApiRequest[Any]) -> None:
        self._left = list(RETRY_DELAYS) if call.is_retryable else []

    def next_delay(self, outcome: Outcome) -> float | None:
        """Return the seconds to wait before the call is sent again, or None: that was it."""
        is_passing = isinstance(outcome, httpx2.TransportError) or (
            outcome.status_code == HTTPStatus.BAD_GATEWAY
            or (outcome.status_code == HTTPStatus.SERVICE_UNAVAILABLE and _is_busy(outcome))
        )
        return self._left.pop(0) if is_passing and self._left else None


def client_options(reach: ClientSettings) -> dict[str, Any]:
    """Return what a client of either kind is made with."""
    return {
        "base_url": reach.base_url,
        "headers": reach.headers,
        "timeout": TIMEOUT,
        "trust_env": not reach.is_local,
    }


def build_request(
    client: httpx2.Client | httpx2.AsyncClient,
    call: ApiRequest[Any],
    files: Any,  # noqa: ANN401 -- as httpx2 takes them
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
    """Return what the studio has answered.

    Raises:
        ApiError: it has refused.
        UnreachableError: nobody has answered.

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
    """Whether it may be well in a moment: the studio says when to come back."""
    return "retry-after" in response.headers
