"""A web site on this machine to fetch files from, with the faults that such have."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest


@dataclass(slots=True)
class ServedFile:
    content: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    tag: str = '"first"'
    """Its ETag; nothing is none."""
    cuts: list[int] = field(default_factory=list)
    """After how many bytes the next answers break off."""
    takes_ranges: bool = True
    length: int | None = None
    """Description that its length is; -1 says nothing, and ends by closing."""


@dataclass(slots=True)
class FileServer:
    url: str
    files: dict[str, ServedFile] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Path and range of each request."""
    check: Callable[[BaseHTTPRequestHandler], str] = lambda _request: ""
    """Says what S3 calls wrong with a request, or nothing; it is asked first."""

    def put(self, path: str, content: bytes = b"", **about: object) -> str:
        """Add a file and return its address."""
        self.files[path] = ServedFile(content, **about)  # type: ignore[arg-type] # a test says what it is
        return self.url + path


@pytest.fixture
def site() -> Iterator[FileServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {}))
    server.daemon_threads = True
    made = FileServer(f"http://127.0.0.1:{server.server_port}")
    server.RequestHandlerClass.site = made  # type: ignore[attr-defined] # of the class just made
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


class _Handler(BaseHTTPRequestHandler):
    site: ClassVar[FileServer]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if code := self.site.check(self):
            self._refuse(code)
            return
        wanted = self.headers.get("range", "")
        self.site.asked.append((self.path, wanted))
        file = self.site.files.get(self.path.partition("?")[0], ServedFile(status=404))
        start, end = _span(wanted)
        is_same = self.headers.get("if-range", file.tag) == file.tag
        partial = bool(wanted) and file.takes_ranges and is_same and file.status == 200
        content = file.content[start:end] if partial else file.content
        self.send_response(206 if partial else file.status)
        for name, value in self._headers(file, start, len(content), partial=partial).items():
            self.send_header(name, value)
        self.end_headers()
        cut = file.cuts.pop(0) if file.cuts else None
        if self.command == "GET":
            self.wfile.write(content[:cut])

    def _refuse(self, code: str) -> None:
        told = f"<Error><Code>{code}</Code><Message>No.</Message></Error>".encode()
        self.send_response(403)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(told)

    def _headers(self, file: ServedFile, start: int, left: int, *, partial: bool) -> dict[str, str]:
        told = {"Content-Type": "application/octet-stream"} | file.headers
        if file.tag:
            told["ETag"] = file.tag
        if partial:
            told["Content-Range"] = f"bytes {start}-{start + left - 1}/{len(file.content)}"
        if file.length != -1:
            told["Content-Length"] = str(left if file.length is None else file.length)
        return told

    def log_message(self, *_: object) -> None: ...


def _span(wanted: str) -> tuple[int, int | None]:
    """Return the places in a file that a range asks for."""
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    return int(first or 0), int(last) + 1 if last else None
