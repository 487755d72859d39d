"""A program that speaks as llama.cpp's server does; its model file says what it does.

The file is JSON: `{"say": ["Go", "od."], "exits_at_start": 3, …}`, see `Part`. It answers each
conversation with those words.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Part:
    """What the program does."""

    say: list[str] = field(default_factory=lambda: ["Go", "od."])
    exits_at_start: int | None = None
    """The code with which it ends at once, after a line in its log."""
    loads_until: str = ""
    """It loads its model until this file exists."""
    pauses_until: str = ""
    """It pauses before the last word until this file exists."""
    dies_before_last: bool = False
    """Whether it ends in the middle of an answer."""
    refuses: str = ""
    """The message of the error with which it answers."""
    refuses_with: int = 400
    has_child: bool = False
    """Whether it starts a process, and leaves it behind."""
    ignores_end: bool = False
    """Whether it has to be killed."""


def wait_for(path: str) -> None:
    while path and not Path(path).exists():
        time.sleep(POLL_SECONDS)


class Handler(BaseHTTPRequestHandler):
    part: Part
    alias: str
    log: Path

    def do_GET(self) -> None:
        is_loading = self.part.loads_until and not Path(self.part.loads_until).exists()
        if is_loading:
            self.fail(503, "Loading model", "unavailable_error")
        elif self.path == "/health":
            self.send(200, {"status": "ok"})
        elif self.is_allowed():
            self.send(200, {"object": "list", "data": [{"id": self.alias, "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.is_allowed():
            return
        with self.log.open("a", encoding="utf-8") as log:
            log.write(json.dumps({"path": self.path, "body": body}) + "\n")
        if self.part.refuses:
            self.fail(self.part.refuses_with, self.part.refuses, "invalid_request_error")
        elif body.get("stream"):
            self.stream()
        else:
            text = "".join(self.words())
            choice = {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "text": text,
                "finish_reason": "stop",
            }
            self.send(200, {"id": "x", "model": self.alias, "choices": [choice]})

    def words(self) -> Iterator[str]:
        *first, last = self.part.say
        yield from first
        if self.part.dies_before_last:
            self.wfile.flush()
            os._exit(9)
        self.pause()
        yield last

    def pause(self) -> None:
        while self.part.pauses_until and not Path(self.part.pauses_until).exists():
            time.sleep(POLL_SECONDS)
            if self.is_gone():
                self.log.with_name("hung-up").touch()
                raise ConnectionResetError

    def is_gone(self) -> bool:
        self.connection.settimeout(0)
        try:
            return not self.connection.recv(1)
        except BlockingIOError:
            return False
        finally:
            self.connection.settimeout(None)

    def stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for word in self.words():
            chunk = {"model": self.alias, "choices": [{"index": 0, "delta": {"content": word}}]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")

    def is_allowed(self) -> bool:
        is_right = self.headers.get("Authorization") == f"Bearer {os.environ['LLAMA_API_KEY']}"
        if not is_right:
            self.fail(401, "Invalid API Key", "authentication_error")
        return is_right

    def fail(self, status: int, message: str, kind: str) -> None:
        self.send(status, {"error": {"code": status, "message": message, "type": kind}})

    def send(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--model", "--alias", "--host"):
        parser.add_argument(name, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--no-webui", action="store_true")
    parser.add_argument("--jinja", action="store_true")
    options = parser.parse_args()
    part = Part(**json.loads(Path(options.model).read_text(encoding="utf-8")))
    sys.stderr.write(f"llama server: loading {options.model}\n")
    if part.exits_at_start is not None:
        sys.stderr.write("error: the model has an unknown architecture: sparrow\n")
        sys.exit(part.exits_at_start)
    if part.ignores_end:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if part.has_child:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    Handler.part, Handler.alias = part, options.alias
    Handler.log = Path(options.model).with_name("requests.jsonl")
    ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
