"""Posts: a socket that listens, and a process that serves it once somebody connects.

So the worker keeps the desk and the speaker. A worker that ends takes them along. One that finds
another's still listening leaves it the socket, and takes it over when that is gone.
"""

import logging
import select
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from studio.processes import unix_sockets
from studio.worker.processes import process

log = logging.getLogger(__name__)

BACKLOG = 64
"""How many may wait to be answered."""

REOPEN_SECONDS = 5.0
"""How often a socket that another worker holds is tried again."""

MIN_RESTART_SECONDS = 2.0
"""The least time between two starts: one that dies as it starts must not be all a worker does."""

REFUSAL_SECONDS = 1.0
"""How long one who is refused may take to say what is not heard."""

MAX_REFUSED_BYTES = 64 * 2**20

MAX_UPDATE_BYTES = 2**16
"""The most that a process may have told of itself between two looks."""


@dataclass(slots=True)
class SocketService:
    socket_path: Path
    """The socket; the log of the process is beside it."""
    module: str
    """The process, which is given the numbers of two open files: the socket, and a lifeline that
    ends when it is to leave, and that it may tell of itself on; then `args`."""
    args: tuple[str, ...] = ()
    gpu: int | None = None
    child: subprocess.Popen[bytes] | None = None
    _listener: socket.socket | None = None
    _lifeline: socket.socket | None = None
    _next_at: float = field(default=float("-inf"))
    _reopen_at: float = field(default=float("-inf"))
    _socket_id: tuple[int, int] = (0, 0)
    """Names the socket's file: another in its place is another's."""

    @property
    def name(self) -> str:
        return self.socket_path.stem

    @property
    def is_running(self) -> bool:
        """Whether a process serves it."""
        return self.child is not None and self.child.poll() is None

    def tick(self) -> None:
        """Start a process if somebody waits for one; never waits itself."""
        if self.has_clients():
            self.start()

    def has_clients(self) -> bool:
        """Whether somebody has connected, and no process takes what comes."""
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
        """Start a process for those who wait."""
        assert self._listener is not None  # noqa: S101 -- somebody has connected
        self._next_at = time.monotonic() + MIN_RESTART_SECONDS
        self.request_exit()
        self._lifeline, theirs = socket.socketpair()
        files = (self._listener.fileno(), theirs.fileno())
        try:
            with self.socket_path.with_suffix(".log").open("wb") as printed:
                self.child = subprocess.Popen(  # noqa: S603 -- our own interpreter, our own module
                    [sys.executable, "-m", self.module, *map(str, files), *self.args],
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=printed,
                    env=process.environment(self.gpu),
                    pass_fds=files,
                    start_new_session=True,
                )
        except OSError as error:
            log.warning("post_not_staffed", extra={"post": self.name, "why": str(error)})
        else:
            log.info("post_staffed", extra={"post": self.name, "pid": self.child.pid})
        finally:
            theirs.close()

    def reject(self, answer: bytes) -> None:
        """Give one who waits an answer in place of the process's own."""
        assert self._listener is not None  # noqa: S101 -- somebody has connected
        line, _ = self._listener.accept()
        with line, suppress(OSError):  # Whoever asked has gone.
            line.settimeout(REFUSAL_SECONDS)
            line.sendall(answer)
            # What was asked is heard out: a line that is closed on it is a broken one.
            line.shutdown(socket.SHUT_WR)
            unix_sockets.receive_all(line, MAX_REFUSED_BYTES)

    def read_updates(self) -> bytes:
        """Return what the process has told of itself since; never waits for it."""
        if self._lifeline is None:
            return b""
        with suppress(BlockingIOError, ConnectionError):
            return self._lifeline.recv(MAX_UPDATE_BYTES, socket.MSG_DONTWAIT)
        return b""

    @property
    def is_leaving(self) -> bool:
        return self._lifeline is None

    def request_exit(self) -> None:
        """Have the process leave once it is through with what it does."""
        if self._lifeline is not None:
            self._lifeline.close()
            self._lifeline = None

    def close(self) -> None:
        """Let the process go, and the socket with it."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            with suppress(OSError):
                if _file_id(self.socket_path) == self._socket_id:
                    self.socket_path.unlink()
        self.request_exit()
        if self.child is not None:
            self.child.kill()  # What it answers is lost; one may ask again.
            self.child.wait()

    def _reopen(self) -> None:
        """Listen, or listen again where the socket's file was deleted: nobody finds it then."""
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
                return  # Another worker's.
            self.socket_path.unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX)
            with unix_sockets.socket_address(self.socket_path) as where:
                listener.bind(where)
            self.socket_path.chmod(0o600)
            listener.listen(BACKLOG)
            self._listener, self._socket_id = listener, _file_id(self.socket_path)
        except OSError as error:
            log.warning("post_not_opened", extra={"post": self.name, "why": str(error)})


def _file_id(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_dev, about.st_ino
