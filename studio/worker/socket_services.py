"""The worker's side of the inference service: it occupies a slot, but yields it to waiting runs.

It starts when a client connects and a slot is free; otherwise the client is refused and may try
again. Once a run or other work waits for its slot, it finishes its current answers and exits.
"""

import logging
import math
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import ValidationError
from sqlalchemy import Engine

from studio.db.session import read_session, unit_of_work
from studio.db.tasks import LoadedModel
from studio.processes import unix_sockets
from studio.protocols import inference_service
from studio.protocols.inference_service import GenerationChunk, InferenceStatus
from studio.protocols.tokenizer_service import ServiceFailure
from studio.services.models import loaded_model
from studio.services.queue.overview import Blocker
from studio.settings import Settings
from studio.worker.processes import process

log = logging.getLogger(__name__)

BACKLOG = 64
"""How many clients may wait for an answer."""

REOPEN_SECONDS = 5.0
"""How often to retry a socket that another worker holds."""

MIN_RESTART_SECONDS = 2.0
"""Minimum time between two starts, so that a crashing service does not keep the worker busy."""

REFUSAL_SECONDS = 1.0
"""How long a refused client may take to send the rest of its request."""

MAX_REFUSED_BYTES = 64 * 2**20

MAX_UPDATE_BYTES = 2**16
"""Maximum size of the updates a process may send between two reads."""


@dataclass(slots=True)
class SocketService:
    socket_path: Path
    """The socket's path; the process's log is next to it."""
    module: str
    """The service's module. Its arguments are two file descriptors, then `args`: the socket, and a
    lifeline that closes when the service must exit and that carries its status updates."""
    args: tuple[str, ...] = ()
    gpu: int | None = None
    child: subprocess.Popen[bytes] | None = None
    _listener: socket.socket | None = None
    _lifeline: socket.socket | None = None
    _next_at: float = field(default=float("-inf"))
    _reopen_at: float = field(default=float("-inf"))
    _socket_id: tuple[int, int] = (0, 0)
    """Identifies the socket's file: a different file in its place belongs to another worker."""

    @property
    def name(self) -> str:
        return self.socket_path.stem

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self.child is not None and self.child.poll() is None

    @property
    def news(self) -> socket.socket | None:
        """What is readable once there is something to do; None if that cannot be waited for."""
        if self.is_running:
            return self._lifeline
        return None if self.is_busy else self._listener

    @property
    def is_busy(self) -> bool:
        """Whether its process is about to exit, or a client must wait for the next start."""
        return self.is_leaving if self.is_running else time.monotonic() < self._next_at

    def tick(self) -> None:
        """Start a process if a client is waiting; never blocks."""
        if self.has_clients():
            self.start()

    def has_clients(self) -> bool:
        """Whether a client has connected and no process is running to accept it."""
        now = time.monotonic()
        if now < self._next_at:
            return False
        if self._listener is None or now >= self._reopen_at:
            self._reopen_at = now + REOPEN_SECONDS
            self._reopen()
        if self._listener is None:
            return False
        return not self.is_running and bool(select.select([self._listener], [], [], 0)[0])

    def start(self) -> None:
        """Start a process for the waiting clients."""
        assert self._listener is not None  # noqa: S101 -- a client has connected
        self._next_at = time.monotonic() + MIN_RESTART_SECONDS
        self.request_exit()
        self._lifeline, service_end = socket.socketpair()
        files = (self._listener.fileno(), service_end.fileno())
        try:
            # In append mode, what shares the file can only add to it.
            with self.socket_path.with_suffix(".log").open("ab") as log_file:
                log_file.truncate(0)
                self.child = subprocess.Popen(  # noqa: S603 -- our own interpreter, our own module
                    [sys.executable, "-m", self.module, *map(str, files), *self.args],
                    stdin=subprocess.DEVNULL,
                    stdout=log_file,
                    stderr=log_file,
                    env=process.environment(self.gpu),
                    pass_fds=files,
                    start_new_session=True,
                )
        except OSError as error:
            log.warning("post_not_staffed", extra={"post": self.name, "why": str(error)})
        else:
            log.info("post_staffed", extra={"post": self.name, "pid": self.child.pid})
        finally:
            service_end.close()

    def reject(self, answer: bytes) -> None:
        """Send a waiting client an answer instead of starting the process."""
        assert self._listener is not None  # noqa: S101 -- a client has connected
        connection, _ = self._listener.accept()
        with connection, suppress(OSError):  # The client has gone.
            connection.settimeout(REFUSAL_SECONDS)
            connection.sendall(answer)
            # Read the whole request: closing earlier would reset the connection.
            connection.shutdown(socket.SHUT_WR)
            unix_sockets.receive_all(connection, MAX_REFUSED_BYTES)

    def read_updates(self) -> bytes:
        """Return updates from the process since the last call; never blocks."""
        if self._lifeline is None:
            return b""
        with suppress(BlockingIOError, ConnectionError):
            return self._lifeline.recv(MAX_UPDATE_BYTES, socket.MSG_DONTWAIT)
        return b""

    @property
    def is_leaving(self) -> bool:
        return self._lifeline is None

    def request_exit(self) -> None:
        """Make the process exit once it has finished its current work."""
        if self._lifeline is not None:
            self._lifeline.close()
            self._lifeline = None

    def close(self) -> None:
        """End the process and remove the socket."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            with suppress(OSError):
                if _file_id(self.socket_path) == self._socket_id:
                    self.socket_path.unlink()
        self.request_exit()
        if self.child is not None:
            self.child.kill()  # Its current answer is lost; clients may retry.
            self.child.wait()

    def _reopen(self) -> None:
        """Listen; listen again if the socket's file was deleted, as clients could not find it."""
        with suppress(FileNotFoundError):
            if self._listener is not None and _file_id(self.socket_path) == self._socket_id:
                return
        if self._listener is not None:
            log.warning("post_lost", extra={"post": self.name})
            self._listener.close()
            self._listener = None
            self.request_exit()
        self._listen()

    def _listen(self) -> None:
        try:
            with suppress(OSError):
                unix_sockets.connect(self.socket_path, timeout=1).close()
                return  # Another worker listens there.
            self.socket_path.unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX)
            with unix_sockets.socket_address(self.socket_path) as address:
                listener.bind(address)
            self.socket_path.chmod(0o600)
            listener.listen(BACKLOG)
            self._listener, self._socket_id = listener, _file_id(self.socket_path)
        except OSError as error:
            log.warning("post_not_opened", extra={"post": self.name, "why": str(error)})


def _file_id(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_dev, stat.st_ino


WRITE_SECONDS = 1.0
"""Minimum time between writes: answers may be short and frequent."""


@dataclass(slots=True)
class LoadedModelStatus:
    """Records which model is loaded: a row that exists as long as the service's process."""

    service: SocketService
    idle: timedelta
    _pid: int = 0
    """Pid of the process the row describes; 0 if there is none."""
    _model: str = ""
    _computed_in: str = ""
    _since: datetime = field(default_factory=lambda: datetime.now(UTC))
    _leaves_at: datetime | None = None
    _written: tuple[object, ...] = ()
    _next_at: float = float("-inf")
    _unread: bytes = b""

    def tick(self, engine: Engine, worker: str) -> None:
        """Record changes, and unload the model if requested."""
        child = self.service.child
        pid = child.pid if child is not None and self.service.is_running else 0
        if pid != self._pid:
            self._reset(engine, worker, pid)
        if not pid:
            return
        self._read_updates()
        self._write(engine, worker)
        with read_session(engine) as db:
            if loaded_model.is_unload_requested(db, worker):
                self.service.request_exit()

    def _reset(self, engine: Engine, worker: str, pid: int) -> None:
        with unit_of_work(engine) as db:
            loaded_model.clear(db, worker)
        self._pid, self._model, self._computed_in, self._unread = pid, "", "", b""
        self._since, self._leaves_at = datetime.now(UTC), None
        self._written, self._next_at = (), float("-inf")

    def _read_updates(self) -> None:
        *lines, self._unread = (self._unread + self.service.read_updates()).split(b"\n")
        for line in lines:
            try:
                update = InferenceStatus.model_validate_json(line)
            except ValidationError:
                continue  # A partial line, because the whole one could not be written.
            if update.name != self._model:
                self._computed_in = ""
            self._model, self._computed_in = update.name, update.computed_in or self._computed_in
            self._leaves_at = None if update.is_answering else datetime.now(UTC) + self.idle

    def _write(self, engine: Engine, worker: str) -> None:
        state = (self._model, self._computed_in, self._leaves_at, self.service.is_leaving)
        if state == self._written or time.monotonic() < self._next_at:
            return
        with unit_of_work(engine) as db:
            row = LoadedModel(
                worker=worker,
                model=self._model,
                computed_in=self._computed_in,
                since=self._since,
                leaves_at=self._leaves_at,
                is_leaving=self.service.is_leaving,
            )
            loaded_model.save_status(db, row)
        self._written, self._next_at = state, time.monotonic() + WRITE_SECONDS


def no_slot_failure(blocker: Blocker | None) -> ServiceFailure:
    """Return the failure for a refused request: what occupies the slot, and for how long."""
    reason = blocker.reason if blocker else "waiting for a run to end"
    minutes = math.ceil((blocker.seconds or 0) / 60) if blocker else 0
    duration = f", in about {minutes} min" if minutes else ""
    return ServiceFailure(
        code="no_free_slot",
        message=f"No slot is free for inference: {reason}{duration}.",
        hint="Try again later, or start the studio with more slots: STUDIO_SLOTS.",
    )


@dataclass(slots=True)
class InferenceService:
    settings: Settings
    service: SocketService = field(init=False)
    status: LoadedModelStatus = field(init=False)
    budget: int = 0
    """The bytes of weights that it may load beside what runs; 0 if it occupies a slot instead."""

    def __post_init__(self) -> None:
        self.service = SocketService(
            inference_service.socket_path(self.settings.home), inference_service.MODULE
        )
        self.status = LoadedModelStatus(
            self.service, timedelta(seconds=self.settings.answer_idle_seconds)
        )

    @property
    def slots(self) -> int:
        """How many slots it occupies that a run could use."""
        return loaded_model.SLOTS_USED * (self.service.is_running and not self.budget)

    @property
    def is_busy(self) -> bool:
        return self.service.is_running or self.service.is_busy

    @property
    def news(self) -> socket.socket | None:
        """What is readable once a client has connected; its updates wait for a tick."""
        return None if self.service.is_running else self.service.news

    @property
    def gpus(self) -> set[int | None]:
        return {self.service.gpu} if self.service.is_running and not self.budget else set()

    def tick(
        self,
        free_slots: Callable[[], int],
        free_gpu: Callable[[], int | None],
        obstacle: Callable[[], Blocker | None],
        budget: Callable[[], int] = lambda: 0,
    ) -> None:
        """Start the service for waiting clients, or refuse them; never blocks.

        Without a free slot it answers beside what runs if `budget` says that memory allows it. It
        exits once a slot is free, to start again in it, and if runs need its memory.
        """
        if self.budget and self.service.is_running and (free_slots() or budget() < self.budget):
            self.service.request_exit()
        while self.service.has_clients():
            if free_slots() > 0:
                self._start(free_gpu(), 0)
            elif spare := budget():
                self._start(process.NO_GPU, spare)
            else:
                self.service.reject(GenerationChunk(failure=no_slot_failure(obstacle())).to_line())

    def _start(self, gpu: int | None, budget: int) -> None:
        self.budget, self.service.gpu = budget, gpu
        self.service.args = (str(self.settings.answer_idle_seconds), str(budget))
        self.service.start()

    def release_slot(self) -> None:
        """Make the service exit after its current answer."""
        self.service.request_exit()

    def close(self) -> None:
        """Kill the service, even during an answer: the worker is exiting."""
        self.service.close()
