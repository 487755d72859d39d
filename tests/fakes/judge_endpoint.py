"""A judge on this machine that speaks OpenAI's API; a test chooses its replies."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, Any]
"""A status, and the JSON of the answer."""


def said(text: str) -> Reply:
    """Return the reply of a model that says a text."""
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}}]}


@dataclass(slots=True)
class JudgeEndpoint:
    url: str
    reply: Callable[[dict[str, Any]], Reply]
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    most_at_once: int = 0


@contextmanager
def run_judge(reply: Callable[[dict[str, Any]], Reply]) -> Iterator[JudgeEndpoint]:
    """Serve a judge until the block ends."""
    lock, active = threading.Lock(), [0]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with lock:
                active[0] += 1
                made.most_at_once = max(made.most_at_once, active[0])
                made.asked.append(request)
                made.keys.append(self.headers.get("Authorization", ""))
            status, content = made.reply(request)
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            with lock:
                active[0] -= 1
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made = JudgeEndpoint(f"http://127.0.0.1:{server.server_port}/v1", reply)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
