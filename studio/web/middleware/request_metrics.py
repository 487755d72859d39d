"""Requests as they pass: each gets an id and is counted by its route; changes are logged.

A plain ASGI layer. Routes are told by their template, which the router leaves in the scope, so
that there are no more labels than routes.
"""

import logging
import re
import secrets
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from studio import logs
from studio.web.auth.security_headers import SAFE
from studio.web.http.prometheus_format import Family, Sample, buckets

log = logging.getLogger(__name__)

HEADER = b"x-request-id"
GIVEN = re.compile(r"[\w.-]{1,64}", re.ASCII)
"""Which ids are taken over from a proxy or a program; any other is replaced."""

METHODS = SAFE | {"POST", "PUT", "PATCH", "DELETE"}
OTHER = "other"
FIRST_ERROR = 400

LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds in seconds, until an answer begins: a stream's end says nothing of the studio."""


@dataclass(slots=True)
class Tally:
    """How many answers of one kind there were, and how long they took."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCIES) + 1))
    seconds: float = 0.0


@dataclass(slots=True)
class Traffic:
    """What was counted since the process began. Only the event loop writes it."""

    tallies: dict[tuple[str, str, str], Tally] = field(default_factory=dict)
    viewers: int = 0
    """Open streams of server-sent events."""

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        tally = self.tallies.setdefault((method, route, str(status)), Tally())
        tally.counts[bisect_left(LATENCIES, seconds)] += 1
        tally.seconds += seconds

    def families(self) -> list[Family]:
        about = "Seconds until an answer began, by method, route and status."
        name, told = "studio_http_request_duration_seconds", [*self._samples()]
        viewers = Family(
            "studio_stream_viewers", "gauge", "Open live streams.", [Sample(self.viewers)]
        )
        return [Family(name, "histogram", about, told), viewers]

    def _samples(self) -> Iterator[Sample]:
        for (method, route, status), tally in sorted(self.tallies.items()):
            labels = {"method": method, "route": route, "status": status}
            within = [sum(tally.counts[: k + 1]) for k in range(len(LATENCIES))]
            yield from buckets(LATENCIES, within, sum(tally.counts), tally.seconds, labels)


class Counter:
    """The layer that every request passes first."""

    def __init__(self, app: ASGIApp, traffic: Traffic) -> None:
        self.app = app
        self.traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _given(scope) or secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        passing = _Passing(self.traffic, scope, send, request_id)
        with logs.log_context(request_id=request_id):
            try:
                await self.app(scope, receive, passing.send)
            finally:
                passing.end()


class _Passing:
    """One request on its way."""

    def __init__(self, traffic: Traffic, scope: Scope, send: Send, request_id: str) -> None:
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
            self._note(message["status"], is_stream=is_stream(headers))
            message["headers"] = [*headers, (HEADER, self._id)]
        await self._send(message)

    def end(self) -> None:
        """Count what never got an answer as a fault of the studio."""
        if not self._status:
            self._note(500, is_stream=False)
        self._traffic.viewers -= self._is_stream

    def _note(self, status: int, *, is_stream: bool) -> None:
        seconds = time.perf_counter() - self._began
        self._status, self._is_stream = status, is_stream
        self._traffic.viewers += is_stream
        asked = self._scope["method"]
        method, route = asked if asked in METHODS else OTHER, _route(self._scope)
        self._traffic.count(method, route, status, seconds)
        if method not in SAFE or status >= FIRST_ERROR:
            self._log({"method": method, "route": route, "status": status}, seconds)

    def _log(self, facts: dict[str, object], seconds: float) -> None:
        run_id = self._scope.get("path_params", {}).get("run_id")
        about = facts | ({"run_id": run_id} if run_id else {"path": self._scope["path"]})
        log.info("request_answered", extra=about | {"ms": round(1000 * seconds, 1)})


def _given(scope: Scope) -> str:
    found = [value.decode("latin-1") for name, value in scope["headers"] if name == HEADER]
    return found[0] if len(found) == 1 and GIVEN.fullmatch(found[0]) else ""


def _route(scope: Scope) -> str:
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else OTHER


def is_stream(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in headers
    )
