"""A proxy in front of a studio that loses, delays and repeats requests and answers."""

import http.client
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAULTS = ("lose request", "lose answer", "cut answer", "repeat", "repeat later")
_HOP_HEADERS = frozenset({"connection", "transfer-encoding", "keep-alive", "host"})


@dataclass(slots=True)
class BadNetwork:
    """Forwards to a port; a share of the requests meets one of the faults."""

    port: int
    share: float = 0.0
    seed: int = 1
    counts: Counter[str] = field(default_factory=Counter)
    """How often each fault occurred, and `forwarded`."""
    answers: list[tuple[str, int]] = field(default_factory=list)
    """The path and the status of each request that has reached the studio, without its query."""
    is_cut: bool = False
    """Whether nothing passes at all."""
    later: list[threading.Thread] = field(default_factory=list)
    server: ThreadingHTTPServer | None = None
    _random: random.Random = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 -- which faults is no secret

    @property
    def url(self) -> str:
        assert self.server is not None
        return f"http://127.0.0.1:{self.server.server_port}"

    @contextmanager
    def running(self) -> Iterator["BadNetwork"]:
        network = self

        class Handler(_Handler):
            proxy = network

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            self.server.server_close()
            for late in self.later:
                late.join()

    def choose(self) -> str:
        with self._lock:
            fault = ""
            if self._random.random() < self.share:
                fault = self._random.choice(FAULTS)
            self.counts[fault or "forwarded"] += 1
            return fault

    def forward(self, request: tuple[str, str, bytes, dict[str, str]]) -> tuple[int, Any, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            method, path, body, headers = request
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            self.answers.append((path.partition("?")[0], answer.status))
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: BadNetwork

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {
            name: value for name, value in self.headers.items() if name.lower() not in _HOP_HEADERS
        } | {"Host": f"127.0.0.1:{self.proxy.port}"}
        request = (self.command, self.path, body, headers)
        fault = self.proxy.choose()
        self.close_connection = True
        if fault == "lose request" or self.proxy.is_cut:
            return
        try:
            status, sent, content = self.proxy.forward(request)
            if fault == "repeat":
                status, sent, content = self.proxy.forward(request)
        except OSError:
            return
        if fault == "repeat later":
            self._repeat_later(request)
        if fault != "lose answer":
            self._answer(status, sent, content, fault)

    def _repeat_later(self, request: tuple[str, str, bytes, dict[str, str]]) -> None:
        def repeat() -> None:
            threading.Event().wait(0.7)
            with suppress(OSError):
                self.proxy.forward(request)

        self.proxy.later.append(threading.Thread(target=repeat))
        self.proxy.later[-1].start()

    def _answer(self, status: int, sent: Any, content: bytes, fault: str) -> None:  # noqa: ANN401 -- http.client's own
        self.send_response_only(status)
        for name, value in sent:
            if name.lower() not in _HOP_HEADERS:
                self.send_header(name, value)
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(content[: len(content) // 2] if fault == "cut answer" else content)

    do_GET = do_POST = do_DELETE = handle_any  # noqa: N815 -- http.server's names

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 -- http.server's name
        """Say nothing."""
