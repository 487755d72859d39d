"""Servers on this machine that messages are sent to: one speaks HTTP, one speaks SMTP."""

import base64
import email
import email.policy
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@dataclass(slots=True)
class ReceivedRequest:
    path: str
    headers: dict[str, str]
    content: bytes


@dataclass(slots=True)
class WebhookReceiver:
    """A receiver of webhooks. What it answers next can be told; 204 when nothing is."""

    url: str
    answers: list[int] = field(default_factory=list)
    posted: list[ReceivedRequest] = field(default_factory=list)
    go_on: threading.Event = field(default_factory=threading.Event)
    """Answers wait for it."""


@dataclass(slots=True)
class MailServer:
    """A mail server with one user. Description to a mail can be told; 250 when nothing is."""

    url: str
    answers: list[str] = field(default_factory=list)
    mails: list[EmailMessage] = field(default_factory=list)
    recipients: list[str] = field(default_factory=list)
    secrets: ssl.SSLContext | None = None
    """What it encrypts with, if it can."""
    were_encrypted: list[bool] = field(default_factory=list)
    """Of each mail, whether it came in secret."""


USER, PASSWORD = "studio", "hush hush"


@pytest.fixture
def hook() -> Iterator[WebhookReceiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            made.posted.append(ReceivedRequest(self.path, dict(self.headers.items()), content))
            made.go_on.wait()
            status = made.answers.pop(0) if made.answers else 204
            self.send_response(status)
            if status // 100 == 3:
                self.send_header("Location", f"{made.url}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made = WebhookReceiver(f"http://127.0.0.1:{server.server_port}")
    made.go_on.set()
    with _served(server):
        yield made
        made.go_on.set()


@pytest.fixture
def post() -> Iterator[MailServer]:
    with run_mail_server() as made:
        yield made


@contextmanager
def run_mail_server(
    scheme: str = "smtp", secrets: ssl.SSLContext | None = None
) -> Iterator[MailServer]:
    """Open a mail server; with a certificate it encrypts: `smtps` at once, `smtp` when asked."""
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Counter)
    server.daemon_threads = True
    made = MailServer(
        f"{scheme}://{USER}:hush%20hush@127.0.0.1:{server.server_address[1]}", secrets=secrets
    )
    server.post = made  # type: ignore[attr-defined] # the handler finds it there
    with _served(server):
        yield made


class _Counter(socketserver.StreamRequestHandler):
    """Speaks as much SMTP as a sender needs to hear."""

    def handle(self) -> None:
        self.post: MailServer = self.server.post  # type: ignore[attr-defined] # set by the fixture
        self.is_encrypted = False
        with suppress(ssl.SSLError, ConnectionError):  # a sender that does not trust us leaves
            if self.post.url.startswith("smtps:"):
                self.encrypt()
            self.talk()
        self.request.close()

    def encrypt(self) -> None:
        assert self.post.secrets is not None
        self.request = self.post.secrets.wrap_socket(self.request, server_side=True)
        self.setup()
        self.is_encrypted = True

    def talk(self) -> None:
        self.say("220 here")
        while line := self.rfile.readline().decode().strip():
            verb, _, rest = line.partition(" ")
            self.answer(verb.upper(), rest)
            if verb.upper() == "QUIT":
                return

    def answer(self, verb: str, rest: str) -> None:
        match verb:
            case "EHLO":
                can_encrypt = self.post.secrets is not None and not self.is_encrypted
                self.say("250-here\r\n" + "250-STARTTLS\r\n" * can_encrypt + "250 AUTH PLAIN")
            case "STARTTLS":
                self.say("220 go on")
                self.encrypt()
            case "AUTH":
                known = base64.b64encode(f"\0{USER}\0{PASSWORD}".encode()).decode()
                self.say("235 welcome" if rest == f"PLAIN {known}" else "535 Wrong password")
            case "RCPT":
                self.post.recipients.append(rest.removeprefix("TO:").strip("<>"))
                self.say("250 ok")
            case "DATA":
                self.say("354 go on")
                self.take()
            case "QUIT":
                self.say("221 bye")
            case _:
                self.say("250 ok")

    def take(self) -> None:
        content = b""
        while not content.endswith(b"\r\n.\r\n"):
            line = self.rfile.readline()
            if not line:  # the sender is gone
                return
            content += line
        said = self.post.answers.pop(0) if self.post.answers else "250 taken"
        if said.startswith("250"):
            policy = email.policy.default
            self.post.mails.append(email.message_from_bytes(content[:-5], policy=policy))
            self.post.were_encrypted.append(self.is_encrypted)
        self.say(said)

    def say(self, words: str) -> None:
        self.wfile.write(f"{words}\r\n".encode())


@contextmanager
def _served(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
