"""Clients of the inference service as they come, wait, are refused and go."""

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from studio.processes import unix_sockets
from studio.protocols.inference_service import GenerationChunk, GenerationEnd, GenerationRequest
from studio.protocols.tokenizer_service import ServiceFailure
from studio.runner.inference import clients
from studio.runner.inference.clients import Client, Inbox

REQUEST = GenerationRequest(model="m", name="one", ids=[1], stops=[2])
END = GenerationChunk(end=GenerationEnd(reason="stop", tokens=1, computed_in="float32"))
SECONDS = 10.0


@dataclass(slots=True)
class Service:
    """An inbox, and both ends of everything that is connected to it."""

    path: Path
    inbox: Inbox
    lifeline: socket.socket
    worker: socket.socket
    opened: list[socket.socket] = field(default_factory=list)

    def connect(self, sent: bytes) -> socket.socket:
        connection = unix_sockets.connect(self.path, SECONDS)
        self.opened.append(connection)
        connection.sendall(sent)
        return connection

    def ask(self, name: str = "one") -> socket.socket:
        asked = REQUEST.model_copy(update={"name": name})
        connection = self.connect(asked.model_dump_json().encode())
        connection.shutdown(socket.SHUT_WR)
        return connection

    def wait(self, seconds: float = SECONDS) -> Client | None:
        client = self.inbox.wait(self.lifeline.fileno(), seconds)
        if client is not None:
            self.opened.append(client.connection)
        return client

    def next(self) -> Client:
        client = self.wait()
        assert client is not None
        return client


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        service = Service(path, Inbox(listener), *socket.socketpair())
        yield service
        service.inbox.refuse(ServiceFailure(code="over", message="The test is over."))
        for opened in (service.lifeline, service.worker, *service.opened):
            opened.close()


def lines(connection: socket.socket) -> list[GenerationChunk]:
    received = unix_sockets.receive_all(connection, 2**30)
    return [GenerationChunk.model_validate_json(line) for line in received.splitlines()]


def test_clients_are_answered_in_the_order_they_asked(service: Service) -> None:
    for name in "abc":
        service.ask(name)

    asked = [service.next().request for _ in "abc"]

    assert [request.name for request in asked if request] == ["a", "b", "c"]


def test_answer_closes_the_connection(service: Service) -> None:
    connection = service.ask()
    client = service.next()
    client.send(GenerationChunk(text="Hi"))
    client.send(END)
    service.inbox.leave(client)

    assert lines(connection) == [GenerationChunk(text="Hi"), END]
    assert client.computed_in == "float32"


@pytest.mark.parametrize("sent", [b"", b"{}", b"\xff", b"GET / HTTP/1.1\r\n\r\n"])
def test_what_is_no_request_is_dropped(service: Service, sent: bytes) -> None:
    stranger = service.connect(sent)
    stranger.shutdown(socket.SHUT_WR)
    service.ask()

    assert service.next().request == REQUEST
    assert lines(stranger) == []


def test_request_that_never_ends_is_dropped_and_others_are_answered(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "REQUEST_SECONDS", 0.0)
    slow = service.connect(b"{")
    service.ask()

    assert service.next().request == REQUEST
    service.inbox.poll()
    assert slow.recv(1) == b""


def test_nobody_is_answered_who_has_hung_up(service: Service) -> None:
    service.ask().close()

    assert service.wait(0.1) is None


def test_closed_lifeline_ends_the_wait_and_the_waiting_are_told(service: Service) -> None:
    connections = [service.ask() for _ in range(2)]
    service.inbox.poll()
    service.worker.close()
    failure = ServiceFailure(code="no_free_slot", message="It leaves.")

    assert service.wait() is None
    service.inbox.refuse(failure)
    assert [lines(one) for one in connections] == [[GenerationChunk(failure=failure)]] * 2


def test_further_clients_wait_in_the_backlog(service: Service) -> None:
    for _ in range(clients.MAX_CONNECTIONS + 3):
        service.ask()
    service.inbox.poll()

    assert len(service.inbox.waiting) == clients.MAX_CONNECTIONS
    for _ in range(clients.MAX_CONNECTIONS):
        service.next()
    service.inbox.poll()
    assert len(service.inbox.waiting) == 3


def test_client_that_reads_late_gets_everything(service: Service) -> None:
    connection, text = service.ask(), GenerationChunk(text="x" * 10**6)
    client = service.next()
    for _ in range(5):
        client.send(text)
    client.send(END)
    service.inbox.leave(client)
    assert client.has_unsent
    received: list[GenerationChunk] = []
    reader = threading.Thread(target=lambda: received.extend(lines(connection)))
    reader.start()
    while client.has_unsent:
        assert service.wait(0.01) is None
    reader.join()

    assert received == [*[text] * 5, END]


def test_client_that_never_reads_is_given_up(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "MAX_UNSENT_BYTES", 10**6)
    service.ask()
    client = service.next()
    for _ in range(20):
        client.send(GenerationChunk(text="x" * 10**5))

    assert client.is_gone
