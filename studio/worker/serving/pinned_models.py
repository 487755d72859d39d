"""The endpoints that the studio's own inference service answers: it keeps their models loaded.

The service is one process for all of them and ends with its worker; the next one loads them again.
"""

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pydantic import ValidationError
from sqlalchemy import Engine
from sqlmodel import Session

from studio.db.endpoints import Endpoint
from studio.db.session import read_session, unit_of_work
from studio.db.states import EndpointState
from studio.engines import studio_engine
from studio.errors import StudioError
from studio.processes import unix_sockets
from studio.protocols.inference_service import GenerationChunk, GenerationRequest
from studio.protocols.tokenizer_service import PromptTokens, ServiceFailure
from studio.services.endpoints import endpoints, lifecycle, reasons, sources
from studio.services.endpoints.usage import NO_SLOT
from studio.settings import Settings
from studio.worker.fault_isolation import FaultIsolation
from studio.worker.socket_services import SocketService

RETRY_SECONDS = 2.0
"""How soon to try again when no slot was free."""


@dataclass(slots=True)
class Call:
    """A request of the worker to the service, whose answer is read as it arrives."""

    connection: socket.socket
    _received: bytes = b""

    @classmethod
    def send(cls, service: SocketService, request: GenerationRequest) -> "Call":
        """Send a request.

        Raises:
            OSError: Nothing listens.

        """
        connection = unix_sockets.connect(service.socket_path, timeout=1)
        connection.sendall(request.model_dump_json().encode())
        connection.shutdown(socket.SHUT_WR)
        connection.setblocking(False)  # noqa: FBT003 -- its only parameter
        return cls(connection)

    def poll(self) -> GenerationChunk | None:
        """Return the last line of the answer, or None while it has not arrived."""
        with suppress(BlockingIOError, ConnectionError):
            while block := self.connection.recv(2**16):
                self._received += block
            self.connection.close()
        is_closed = self.connection.fileno() < 0
        *lines, _rest = self._received.split(b"\n")
        for line in lines:
            with suppress(ValidationError):
                chunk = GenerationChunk.model_validate_json(line)
                if chunk.end is not None or chunk.failure is not None:
                    self.connection.close()
                    return chunk
        return GenerationChunk(failure=_lost(None)) if is_closed else None


@dataclass(slots=True)
class PinnedModels:
    database: Engine
    settings: Settings
    isolation: FaultIsolation
    service: SocketService
    _loads: dict[int, Call] = field(default_factory=dict)
    """By endpoint, the requests to load its model that are under way."""
    _pinned: dict[int, tuple[int, str]] = field(default_factory=dict)
    """By endpoint, the process that keeps its model loaded, and the name it is kept under."""
    _releases: list[Call] = field(default_factory=list)
    _retry_at: dict[int, float] = field(default_factory=dict)

    @property
    def is_busy(self) -> bool:
        """Whether a model is loading, or is to be loaded again at some time."""
        return bool(self._loads or self._releases) or any(
            at > time.monotonic() for at in self._retry_at.values()
        )

    def adopt(self) -> None:
        """Load again what an earlier worker kept loaded: the service ended with it."""
        with self.isolation.step("adopt", "pinned models"), unit_of_work(self.database) as db:
            for row in _rows(db):
                lifecycle.record_lost(row)

    def tick(self, missing_slots: Callable[[], int]) -> None:
        """Load and unload models; none is loaded while runs or tasks wait for a slot."""
        with read_session(self.database) as db:
            rows = {row.id or 0: row for row in _rows(db)}
        self._releases = [call for call in self._releases if call.poll() is None]
        for endpoint_id in [*self._pinned, *self._loads]:
            if endpoint_id not in rows:
                self._release(endpoint_id)
        for endpoint_id, row in rows.items():
            with self.isolation.step("serve", f"endpoint {endpoint_id}"):
                self._tick(endpoint_id, row, missing_slots)

    def _tick(self, endpoint_id: int, row: Endpoint, missing_slots: Callable[[], int]) -> None:
        if endpoint_id in self._loads:
            self._await_load(endpoint_id)
        elif row.state is EndpointState.READY:
            self._check(endpoint_id, row)
        elif lifecycle.may_start(row):
            # A wait for the next try ends when somebody starts the endpoint.
            is_retry = bool(row.crashes or row.note)
            is_due = not is_retry or time.monotonic() >= self._retry_at.get(endpoint_id, 0.0)
            if is_due and not missing_slots():
                self._load(endpoint_id)
        elif endpoint_id in self._pinned:
            self._release(endpoint_id)

    def _check(self, endpoint_id: int, row: Endpoint) -> None:
        """Record that a ready model is unused, was unloaded for other work, or was lost."""
        is_idle = lifecycle.is_idle(row)
        if not is_idle and self._is_loaded(endpoint_id):
            return
        with unit_of_work(self.database) as db:
            current = db.get(Endpoint, endpoint_id)
            if current is None or current.state is not EndpointState.READY:
                return
            if is_idle:
                lifecycle.give_up_slot(current, reasons.UNUSED)
                return
            if self.service.is_leaving:
                lifecycle.give_up_slot(current, reasons.GAVE_UP)
            elif self.service.is_running:  # Another process, which does not know the model.
                lifecycle.record_lost(current)
            else:
                child = self.service.child
                self._record_crash(current, _lost(child.poll() if child else None))
            self._pinned.pop(endpoint_id, None)

    def _is_loaded(self, endpoint_id: int) -> bool:
        child, (pid, _name) = self.service.child, self._pinned.get(endpoint_id, (0, ""))
        is_same = child is not None and child.pid == pid
        return is_same and self.service.is_running and not self.service.is_leaving

    def _load(self, endpoint_id: int) -> None:
        """Have the service load a model, which starts it if a slot is free."""
        self._retry_at[endpoint_id] = time.monotonic() + RETRY_SECONDS
        try:
            with read_session(self.database) as db:
                request = _load_request(db, self.settings, endpoints.get(db, endpoint_id))
        except StudioError as error:
            with unit_of_work(self.database) as db:
                lifecycle.record_failure(endpoints.get(db, endpoint_id), error)
            return
        with suppress(OSError):  # The socket is being opened.
            self._loads[endpoint_id] = Call.send(self.service, request)

    def _await_load(self, endpoint_id: int) -> None:
        chunk = self._loads[endpoint_id].poll()
        if chunk is None:
            return
        del self._loads[endpoint_id]
        with unit_of_work(self.database) as db:
            row = db.get(Endpoint, endpoint_id)
            if row is None:
                return
            if chunk.failure is None:
                child = self.service.child
                self._pinned[endpoint_id] = (child.pid if child else 0, row.name)
                if lifecycle.may_start(row):
                    lifecycle.record_ready(row)
            elif chunk.failure.code == NO_SLOT:
                row.note = chunk.failure.message
            else:
                self._record_crash(row, chunk.failure)

    def _record_crash(self, row: Endpoint, failure: ServiceFailure) -> None:
        endpoint_id = row.id or 0
        self._pinned.pop(endpoint_id, None)
        lifecycle.record_crash(row, failure.message, failure.hint)
        wait = lifecycle.backoff_seconds(row.crashes)
        self._retry_at[endpoint_id] = time.monotonic() + wait

    def _release(self, endpoint_id: int) -> None:
        """Let the service unload a model; without another endpoint, it ends."""
        if load := self._loads.pop(endpoint_id, None):
            load.connection.close()
        pid, name = self._pinned.pop(endpoint_id, (0, ""))
        if not pid or self.service.child is None or self.service.child.pid != pid:
            return
        if not self._pinned and not self._loads:
            self.service.request_exit()
        elif name:
            request = GenerationRequest(model="", ids=[], stops=[], unpins=name)
            with suppress(OSError):
                self._releases.append(Call.send(self.service, request))


def _rows(db: Session) -> Sequence[Endpoint]:
    return [row for row in endpoints.list_all(db) if row.engine == studio_engine.ENGINE.name]


def _load_request(db: Session, settings: Settings, row: Endpoint) -> GenerationRequest:
    """Return a request that only loads a model, and keeps it loaded."""
    served = sources.resolve(db, settings.runs, sources.source_of(row)).served
    assert served is not None  # noqa: S101 -- refused when the endpoint was created
    blank = GenerationRequest(model="", ids=[], stops=[], pins=row.name)
    return served.fill_in(blank, row.name, PromptTokens(ids=[], stops=[]))


def _lost(code: int | None) -> ServiceFailure:
    """Return the failure of a service that ended by itself."""
    message = reasons.explain_end(reasons.SERVICE, code)
    return ServiceFailure(code="unavailable", message=message, hint=reasons.SERVICE_HINT)
