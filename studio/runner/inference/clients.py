"""Connections to the inference service; none of them makes another wait."""

import select
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from pydantic import ValidationError

from studio.processes.unix_sockets import is_hung_up
from studio.protocols.inference_service import (
    MAX_REQUEST_BYTES,
    GenerationChunk,
    GenerationRequest,
)
from studio.protocols.tokenizer_service import ServiceFailure

REQUEST_SECONDS = 5.0
"""How long a request may pause while it arrives. Clients are the studio's own processes on this
machine; those that have arrived are read between the tokens of an answer."""

MAX_UNSENT_BYTES = 64 * 2**20
"""A client that reads so much later than its answer is written has given up."""

MAX_CONNECTIONS = 16
"""How many clients are accepted; further ones wait in the socket's backlog."""

_BLOCK_BYTES = 2**16


@dataclass(slots=True)
class Client:
    """A connection that sends one request, and is sent one answer."""

    connection: socket.socket
    request: GenerationRequest | None = None
    is_answered: bool = False
    """Whether everything has been written to it, though it may not have arrived yet."""
    computed_in: str = ""
    _received: bytearray = field(default_factory=bytearray)
    _unsent: bytearray = field(default_factory=bytearray)
    _deadline: float = field(default_factory=lambda: time.monotonic() + REQUEST_SECONDS)

    def __post_init__(self) -> None:
        self.connection.settimeout(0)

    @property
    def is_gone(self) -> bool:
        """Whether it has hung up, or cannot be spoken to."""
        return self.connection.fileno() < 0 or is_hung_up(self.connection)

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent) and not self.is_gone

    def receive(self) -> None:
        """Read what has arrived; close the connection if it is no request."""
        try:
            while block := self.connection.recv(_BLOCK_BYTES):
                self._received += block
                self._deadline = time.monotonic() + REQUEST_SECONDS
                if len(self._received) > MAX_REQUEST_BYTES:
                    self.close()
                    return
            self.request = GenerationRequest.model_validate_json(bytes(self._received))
            self._received.clear()
        except BlockingIOError:
            if time.monotonic() > self._deadline:
                self.close()
        except (OSError, ValidationError):  # It has gone, or is not one of our clients.
            self.close()

    def send(self, chunk: GenerationChunk) -> None:
        """Send a line, or keep it until the client reads on."""
        self.is_answered = chunk.end is not None or chunk.failure is not None
        if chunk.end is not None:
            self.computed_in = chunk.end.computed_in
        self._unsent += chunk.to_line()
        self.flush()

    def flush(self) -> None:
        """Send what has been kept, as far as the client reads it."""
        try:
            while self._unsent:
                del self._unsent[: self.connection.send(self._unsent[:_BLOCK_BYTES])]
        except BlockingIOError:
            if len(self._unsent) > MAX_UNSENT_BYTES:
                self.close()
        except OSError:  # It has gone.
            self.close()
        if self.is_answered and not self._unsent:
            self.close()

    def fail(self, failure: ServiceFailure) -> None:
        if not self.is_answered:
            self.send(GenerationChunk(failure=failure))

    def close(self) -> None:
        self.connection.close()
        self._unsent.clear()


@dataclass(slots=True)
class Inbox:
    """The clients that wait for an answer, in the order in which they asked."""

    listener: socket.socket
    waiting: list[Client] = field(default_factory=list)
    """Those whose request has arrived."""
    _arriving: list[Client] = field(default_factory=list)
    _leaving: list[Client] = field(default_factory=list)
    """Those that have not read the end of their answer."""

    def wait(self, lifeline: int, idle_seconds: float) -> Client | None:
        """Return the next client; None if the lifeline closes, or no one asks for a time."""
        end = time.monotonic() + idle_seconds
        while True:
            if is_readable(lifeline):
                return None
            self.poll()
            if self.waiting:
                return self.waiting.pop(0)
            seconds = end - time.monotonic()
            if seconds <= 0:
                return None
            self._select(lifeline, seconds)

    def poll(self) -> None:
        """Accept clients, and read and send what can be; never blocks."""
        for client in self._leaving:
            client.flush()
        self._arriving += self._accept()
        for client in self._arriving:
            client.receive()
        self.waiting += [client for client in self._arriving if client.request is not None]
        self._arriving = [client for client in self._arriving if _is_arriving(client)]
        for client in (*self.waiting, *self._leaving):
            if client.is_gone:
                client.close()
        self.waiting = [client for client in self.waiting if not client.is_gone]
        self._leaving = [client for client in self._leaving if client.has_unsent]

    def leave(self, client: Client) -> None:
        """Let an answered client read the rest of its answer."""
        if client.has_unsent:
            self._leaving.append(client)
        else:
            client.close()

    def refuse(self, failure: ServiceFailure) -> None:
        """Send every waiting client a failure: it will not be answered."""
        for client in (*self.waiting, *self._arriving):
            client.fail(failure)
            client.close()
        for client in self._leaving:
            client.close()

    def _accept(self) -> Iterator[Client]:
        while len(self.waiting) + len(self._arriving) < MAX_CONNECTIONS:
            if not is_readable(self.listener.fileno()):
                return
            connection, _ = self.listener.accept()
            yield Client(connection)

    def _select(self, lifeline: int, seconds: float) -> None:
        arriving = [client.connection.fileno() for client in self._arriving]
        leaving = [client.connection.fileno() for client in self._leaving]
        if arriving:
            seconds = min(seconds, REQUEST_SECONDS)
        select.select([lifeline, self.listener.fileno(), *arriving], leaving, [], seconds)


def is_readable(file: int) -> bool:
    """Whether something has arrived at a socket, or it is closed at the other end."""
    return bool(select.select([file], [], [], 0)[0])


def _is_arriving(client: Client) -> bool:
    return client.request is None and client.connection.fileno() >= 0
