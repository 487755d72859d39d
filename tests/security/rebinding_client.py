"""A program that asks a name which first leads to the internet, and then inside.

    unshare -rnm sh -c … python -m tests.security.rebinding_client VISIT FOLDER

Its name server is real, and so are both web servers: one at an address of the internet, one inside.
It prints what came of a visit, which servers were asked for what, and how often the name was.
"""

import json
import socket
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from pydantic import SecretStr

from studio.data_sources import FetchLimits
from studio.db.outbox import Delivery
from studio.errors import StudioError
from studio.runner.sources import http
from studio.runner.sources.http import DownloadRequest
from studio.settings import Settings
from studio.worker import notifications

NAME, PORT = "rebind.example.org", 8000
PUBLIC, INSIDE = "93.184.216.34", "127.0.0.1"
ROWS = b"prompt,completion\na,b\n"
_A, _RETURNED, _HEADER = 1, b"\x81\x80", 12

reached: list[str] = []
looked_up: list[str] = []
"""What the name server has answered."""


def answer_names(server: socket.socket) -> None:
    """Answer the first look-up with the public address and every later one with the inner one."""
    while True:
        asked, whoever = server.recvfrom(512)
        end = asked.index(b"\0", _HEADER) + 5
        kind = int.from_bytes(asked[end - 4 : end - 2])
        answer = b""
        if kind == _A:
            looked_up.append(INSIDE if looked_up else PUBLIC)
            address = socket.inet_aton(looked_up[-1])
            answer = b"\xc0\x0c\0\1\0\1" + bytes(4) + len(address).to_bytes(2) + address
        counts = b"\0\1" + bool(answer).to_bytes(2) + bytes(4)
        server.sendto(asked[:2] + _RETURNED + counts + asked[_HEADER:end] + answer, whoever)


class Handler(BaseHTTPRequestHandler):
    """The same site at both addresses."""

    def do_GET(self) -> None:
        self._note()
        leads = self.path == "/hop"
        self.send_response(302 if leads else 200)
        if leads:
            self.send_header("Location", f"http://{NAME}:{PORT}/rows.csv")
        self.send_header("Content-Length", str(len(ROWS)))
        self.end_headers()
        self.wfile.write(ROWS[:5] if self.path == "/cut" else ROWS)

    def do_POST(self) -> None:
        self._note()
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_said: object) -> None: ...

    def _note(self) -> None:
        reached.append(f"{self.connection.getsockname()[0]} {self.path}")


def fetched(path: str, folder: Path) -> str:
    wish = DownloadRequest(
        f"http://{NAME}:{PORT}{path}", FetchLimits(bytes=1000, row_bytes=100, seconds=30)
    )
    found, _, _ = http.fetch(wish, folder, lambda _phase, _share: None)
    return found.read_text(encoding="utf-8")


def posted(_folder: Path) -> str:
    told = Settings(webhook_url=SecretStr(f"http://{NAME}:{PORT}/hook"))
    now = datetime.now(UTC)
    delivery = Delivery(key="k", channel="webhook", event="test", created_at=now)
    return notifications.deliver(delivery, told, now).words


VISITS: dict[str, Callable[[Path], str]] = {
    "fetch": lambda folder: fetched("/rows.csv", folder),
    "hop": lambda folder: fetched("/hop", folder),
    "cut": lambda folder: fetched("/cut", folder),
    "webhook": posted,
}


def main(visit: str, folder: Path) -> None:
    names = socket.socket(type=socket.SOCK_DGRAM)
    names.bind((INSIDE, 53))
    threading.Thread(target=answer_names, args=(names,), daemon=True).start()
    for host in (PUBLIC, INSIDE):
        server = ThreadingHTTPServer((host, PORT), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        said = VISITS[visit](folder)
    except StudioError as error:
        said = error.message
    told = {"said": said, "reached": list(reached), "looked_up": list(looked_up)}
    now = socket.gethostbyname(NAME)
    sys.stdout.write(json.dumps(told | {"leads_now": now}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
