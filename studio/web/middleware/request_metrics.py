"""Request ids, request metrics by route, and a log of changes and errors.

Pure ASGI middleware. Metrics are labelled with the route template, which the router leaves in the
scope, so that there are no more labels than routes.
"""

import logging
import re
import secrets
import time
from bisect import bisect_left
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from studio import logs
from studio.web.auth.security_headers import SAFE_METHODS

log = logging.getLogger(__name__)

REQUEST_ID_HEADER = b"x-request-id"
REQUEST_ID_PATTERN = re.compile(r"[\w.-]{1,64}", re.ASCII)
"""Ids accepted from a proxy or a client; any other is replaced."""

KNOWN_METHODS = SAFE_METHODS | {"POST", "PUT", "PATCH", "DELETE"}
OTHER = "other"
FIRST_ERROR = 400

LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds in seconds until a response starts: how long a stream lasts is not latency."""


@dataclass(slots=True)
class RouteStats:
    """Count and total latency of the responses with one method, route and status."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS) + 1))
    seconds: float = 0.0


@dataclass(slots=True)
class RequestMetrics:
    """Request counts since the process started. Only written on the event loop."""

    tallies: dict[tuple[str, str, str], RouteStats] = field(default_factory=dict)
    open_streams: int = 0
    """Open streams of server-sent events."""

    def record(self, method: str, route: str, status: int, seconds: float) -> None:
        stats = self.tallies.setdefault((method, route, str(status)), RouteStats())
        stats.buckets[bisect_left(LATENCY_BUCKETS, seconds)] += 1
        stats.seconds += seconds


class RequestMetricsMiddleware:
    """The outermost middleware."""

    def __init__(self, app: ASGIApp, traffic: RequestMetrics) -> None:
        self.app = app
        self.traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _incoming_request_id(scope) or secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        recorder = _RequestRecorder(self.traffic, scope, send, request_id)
        with logs.log_context(request_id=request_id):
            try:
                await self.app(scope, receive, recorder.send)
            finally:
                recorder.finish()


class _RequestRecorder:
    """Records one request."""

    def __init__(self, traffic: RequestMetrics, scope: Scope, send: Send, request_id: str) -> None:
        self._traffic = traffic
        self._scope = scope
        self._send = send
        self._id = request_id.encode()
        self._began = time.perf_counter()
        self._status = 0
        self._is_stream = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = message.get("headers", [])
            self._record(message["status"], is_stream=is_event_stream(headers))
            message["headers"] = [*headers, (REQUEST_ID_HEADER, self._id)]
        await self._send(message)

    def finish(self) -> None:
        """Count a request without a response as a server error."""
        if not self._status:
            self._record(500, is_stream=False)
        self._traffic.open_streams -= self._is_stream

    def _record(self, status: int, *, is_stream: bool) -> None:
        seconds = time.perf_counter() - self._began
        self._status, self._is_stream = status, is_stream
        self._traffic.open_streams += is_stream
        verb = self._scope["method"]
        method, route = verb if verb in KNOWN_METHODS else OTHER, _route_template(self._scope)
        self._traffic.record(method, route, status, seconds)
        if method not in SAFE_METHODS or status >= FIRST_ERROR:
            self._log({"method": method, "route": route, "status": status}, seconds)

    def _log(self, facts: dict[str, object], seconds: float) -> None:
        run_id = self._scope.get("path_params", {}).get("run_id")
        fields = facts | ({"run_id": run_id} if run_id else {"path": self._scope["path"]})
        log.info("request_answered", extra=fields | {"ms": round(1000 * seconds, 1)})


def _incoming_request_id(scope: Scope) -> str:
    ids = [value.decode("latin-1") for name, value in scope["headers"] if name == REQUEST_ID_HEADER]
    return ids[0] if len(ids) == 1 and REQUEST_ID_PATTERN.fullmatch(ids[0]) else ""


def _route_template(scope: Scope) -> str:
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else OTHER


def is_event_stream(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in headers
    )
