"""Start runs instantly: fork them from a server that has the training packages loaded.

This is optional. While the server loads, after it died, when installed packages have changed, or
where forking is not safe, runs are spawned: seconds slower, otherwise the same. Without a use it
leaves, as it takes a few hundred MB, and comes back once somebody prepares or starts a run.
"""

import json
import logging
import os
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

import studio
from studio.hardware import detect
from studio.processes.start_time import process_start_time
from studio.protocols.run_dir import RunDir
from studio.services.workers import workers as board
from studio.settings import Settings
from studio.worker.processes import process
from studio.worker.processes.process import Process

log = logging.getLogger(__name__)

REPLY_SECONDS = 3.0
"""How long a fork may take. After that, the run is spawned, and a late fork exits by itself."""

MAX_AGE_SECONDS = 24 * 3600.0
"""Maximum age of a server: restarting it clears any leaks."""

CHECK_SECONDS = 60.0
"""How often to check whether installed packages have changed, apart from before each start."""

RETRY_SECONDS = (1.0, 10.0, 60.0, 600.0)
"""Delay before the next server after one failure, two, three, and more."""

RETURN_SECONDS = 10.0
"""When a server that left returns after a run had to be spawned: the run's start comes first."""

_MESSAGE_BYTES = 2**16

InstallStamp = tuple[float, ...]


@dataclass(slots=True)
class PreforkConnection:
    """The server's process, and the only connection to it."""

    child: subprocess.Popen[bytes]
    socket: socket.socket
    stamp: InstallStamp
    born: float = field(default_factory=time.monotonic)
    is_ready: bool = False
    reply_seconds: float = REPLY_SECONDS

    def fork_run(self, folder: RunDir, env: dict[str, str]) -> Process:
        """Fork a run.

        Raises:
            OSError: the run was not forked and will not be.

        """
        self.socket.settimeout(self.reply_seconds)
        go, started = os.pipe()
        try:
            with folder.log.open("ab") as log_file:
                message = json.dumps({"root": str(folder.root), "env": env}).encode()
                socket.send_fds(self.socket, [message], [log_file.fileno(), go])
            forked = _to_process(self.receive()["pid"], folder)
            os.write(started, b"1")
        finally:
            os.close(go)
            os.close(started)
        return forked

    def receive(self) -> dict[str, Any]:
        """Return the next message from the server.

        Raises:
            BlockingIOError: there is none.
            OSError: the server is gone or must not be used; the message explains why.

        """
        message = self.socket.recv(_MESSAGE_BYTES)
        if not message:
            raise ConnectionResetError(
                "The process ended without a message; its log is launcher.log."
            )
        reply: dict[str, Any] = json.loads(message)
        if reply["why"]:
            raise OSError(reply["why"])
        return reply


@dataclass(slots=True)
class PreforkClient:
    """Keeps a prefork server ready, and starts runs with it when possible."""

    settings: Settings
    connection: PreforkConnection | None = None
    failures: int = 0
    """How many servers in a row could not be used."""
    _is_enabled: bool = False
    _wanted_at: float = 0.0
    _next_at: float = 0.0
    _check_at: float = 0.0
    _leaving: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """Servers that were asked to exit and are about to."""

    def open(self) -> None:
        """Load the training packages in the background, if forking is possible here."""
        can_fork = sys.platform == "linux" and bool(detect().torch)
        self._is_enabled = self.settings.warm_launcher and can_fork
        self._write_status("off")
        self.want()
        self.tick()

    @property
    def _is_idle(self) -> bool:
        return time.monotonic() - self._wanted_at >= self.settings.warm_launcher_idle_seconds

    def want(self) -> None:
        """Keep the server, or bring it back: a run may start soon."""
        self._wanted_at = time.monotonic()

    def start(
        self,
        folder: RunDir,
        *,
        gpu: int | None = None,
        command: Sequence[str] = process.RUNNER,
        besides: Mapping[str, str] = MappingProxyType({}),
    ) -> Process:
        """Start the process that trains the run in a folder, in the fastest way available."""
        if self.connection is None and self._is_idle:
            self._next_at = time.monotonic() + RETURN_SECONDS
        self.want()
        self._receive()
        self._restart_if_stale()
        if (
            self.connection is not None
            and self.connection.is_ready
            and tuple(command) == process.RUNNER
        ):
            try:
                forked = self.connection.fork_run(folder, process.environment(gpu) | dict(besides))
            except OSError as error:
                self._back_off(error)
            else:
                self.failures = 0
                return forked
        return process.start(folder, gpu=gpu, command=command, besides=besides)

    def tick(self) -> None:
        """Maintain the server; never blocks."""
        now = time.monotonic()
        self._receive()
        if self._is_idle:
            self._leave()
        elif self.connection is None and self._is_enabled and now >= self._next_at:
            self._start_server()
        elif now >= self._check_at:
            self._check_at = now + CHECK_SECONDS
            self._restart_if_stale()
        self._leaving = [child for child in self._leaving if child.poll() is None]

    def close(self) -> None:
        """Let the server exit; runs it has started continue."""
        self._is_enabled = False
        self._disconnect()
        self._write_status("off")

    def _leave(self) -> None:
        if self.connection is not None:
            log.info("launcher_idle")
            self._disconnect()
            self._write_status("idle")

    def _start_server(self) -> None:
        client_end, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with server_end, (self.settings.home / "launcher.log").open("wb") as log_file:
                child = subprocess.Popen(  # noqa: S603 -- our own interpreter, our own path
                    [sys.executable, "-m", process.PREFORK_SERVER, str(self.settings.runs)],
                    stdin=server_end.fileno(),
                    stdout=log_file,
                    stderr=log_file,
                    # The hub's client reads the hub's URL once, when it is imported.
                    env=process.environment(None) | process.hub_environment(self.settings),
                    start_new_session=True,
                )
        except OSError as error:
            client_end.close()
            self._back_off(error)
            return
        self.connection = PreforkConnection(child, client_end, _install_stamp())
        self._write_status("loading")

    def _receive(self) -> None:
        """Process a message from the server: that it is ready, or why not."""
        if self.connection is None:
            return
        self.connection.socket.settimeout(0)
        try:
            self.connection.receive()
        except BlockingIOError:
            return
        except OSError as error:
            self._back_off(error)
            return
        self.connection.is_ready = True
        self._write_status("ready")
        log.info("launcher_ready", extra={"pid": self.connection.child.pid})

    def _restart_if_stale(self) -> None:
        """Replace the server if it is old or its packages have changed."""
        if self.connection is None:
            return
        if (
            self.connection.stamp != _install_stamp()
            or time.monotonic() - self.connection.born > MAX_AGE_SECONDS
        ):
            log.info("launcher_renewed")
            self._disconnect()
            self._start_server()

    def _back_off(self, error: OSError) -> None:
        """Do without the server for a while, longer after each failure."""
        delay = RETRY_SECONDS[min(self.failures, len(RETRY_SECONDS) - 1)]
        self.failures += 1
        self._next_at = time.monotonic() + delay
        log.warning("launcher_lost", extra={"why": str(error), "again_in_seconds": delay})
        self._disconnect()
        self._write_status("broken", str(error))

    def _disconnect(self) -> None:
        if self.connection is not None:
            self.connection.socket.close()
            if not self.connection.is_ready:
                self.connection.child.kill()  # It has not started anything yet.
            self._leaving.append(self.connection.child)
            self.connection = None

    def _write_status(self, state: board.LauncherState, why: str = "") -> None:
        status = board.LauncherStatus(state=state, why=why)
        with suppress(OSError, psutil.NoSuchProcess):  # Only pages and `studio doctor` read it.
            if self.connection is not None:
                pid = self.connection.child.pid
                status = status.model_copy(update={"pid": pid, "started": process_start_time(pid)})
            board.write_launcher(self.settings, status)


def _to_process(pid: int, folder: RunDir) -> Process:
    try:
        return Process(pid, process_start_time(pid), folder=folder)
    except psutil.NoSuchProcess as error:
        raise ConnectionResetError("The process ended before it could be recorded.") from error


def _install_stamp() -> InstallStamp:
    """Return a value that changes when packages are installed or the studio's code is edited."""
    package_folders = [Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")]
    sources = sorted(Path(studio.__file__).parent.rglob("*.py"))
    return tuple(path.stat().st_mtime for path in (*package_folders, *sources))
