"""An endpoint on this machine that streams answers as OpenAI's API does, or as a test wants."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

EVENTS = {"Content-Type": "text/event-stream"}


@dataclass(frozen=True, slots=True)
class Reply:
    pieces: Iterable[bytes]
    """Sent one after the other; the connection is closed after the last one."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: EVENTS)


@dataclass(slots=True)
class StreamingEndpoint:
    url: str
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    hung_up: threading.Event = field(default_factory=threading.Event)
    """Set when a client has closed its connection before the last piece."""


def event(data: Any) -> bytes:  # noqa: ANN401 -- any JSON
    return f"data: {json.dumps(data)}\n\n".encode()


def chunk(finish: str | None = None, logprobs: Any = None, **delta: Any) -> bytes:  # noqa: ANN401 -- any JSON
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
    return event({"model": "large-2026", "choices": [choice]})


def said(*texts: str, finish: str = "stop") -> Reply:
    """Return the reply of a model that says a text in pieces."""
    usage = event({"model": "large-2026", "choices": [], "usage": {"completion_tokens": 7}})
    pieces = [chunk(content=text) for text in texts]
    return Reply([*pieces, chunk(finish), usage, b"data: [DONE]\n\n"])


def failed(status: int, message: str, headers: Mapping[str, str] | None = None) -> Reply:
    content = json.dumps({"error": {"message": message}}).encode()
    return Reply([content], status, {"Content-Type": "application/json"} | dict(headers or {}))


@contextmanager
def run_endpoint(reply: Callable[[dict[str, Any]], Reply]) -> Iterator[StreamingEndpoint]:
    """Serve an endpoint until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            made.asked.append(request)
            made.keys.append(self.headers.get("Authorization", ""))
            answer = reply(request)
            try:
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                for piece in answer.pieces:
                    self.wfile.write(piece)
            except OSError:
                made.hung_up.set()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made = StreamingEndpoint(f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
