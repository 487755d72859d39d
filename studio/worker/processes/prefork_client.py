"""Runs that start at once: forked by a launcher that has the training packages loaded.

Nothing depends on it. While it loads, after it died, when what is installed has changed, or where
a process cannot be forked safely, runs are spawned as ever: slower by seconds, otherwise alike.
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
from studio.services.workers import launcher_status as board
from studio.settings import Settings
from studio.worker.processes import process
from studio.worker.processes.process import Process

log = logging.getLogger(__name__)

REPLY_SECONDS = 3.0
"""How long a fork may take; then the run is spawned, and the fork, should it come, ends itself."""

MAX_AGE_SECONDS = 24 * 3600.0
"""How old a launcher may grow: whatever leaks in it is gone then."""

CHECK_SECONDS = 5.0
"""How often it is asked whether what is installed has changed."""

RETRY_SECONDS = (1.0, 10.0, 60.0, 600.0)
"""How long to wait before the next launcher, after one death, two, three, and more."""

_MESSAGE_BYTES = 2**16

InstallStamp = tuple[float, ...]


@dataclass(slots=True)
class PreforkConnection:
    """A launcher's process, and the only way to talk to it."""

    child: subprocess.Popen[bytes]
    socket: socket.socket
    stamp: InstallStamp
    born: float = field(default_factory=time.monotonic)
    is_ready: bool = False
    reply_seconds: float = REPLY_SECONDS

    def fork_run(self, folder: RunDir, env: dict[str, str]) -> Process:
        """Have a run forked.

        Raises:
            OSError: it was not, and will not be.

        """
        self.socket.settimeout(self.reply_seconds)
        go, started = os.pipe()
        try:
            with folder.log.open("ab") as printed:
                message = json.dumps({"root": str(folder.root), "env": env}).encode()
                socket.send_fds(self.socket, [message], [printed.fileno(), go])
            made = _to_process(self.receive()["pid"], folder)
            os.write(started, b"1")
        finally:
            os.close(go)
            os.close(started)
        return made

    def receive(self) -> dict[str, Any]:
        """Return the next thing it says.

        Raises:
            BlockingIOError: nothing.
            OSError: it is gone, or must not be used; the message says why.

        """
        message = self.socket.recv(_MESSAGE_BYTES)
        if not message:
            raise ConnectionResetError("Its process ended without a word; its log is launcher.log.")
        told: dict[str, Any] = json.loads(message)
        if told["why"]:
            raise OSError(told["why"])
        return told


@dataclass(slots=True)
class PreforkClient:
    """Keeps one launcher ready, and starts runs by it when it can."""

    settings: Settings
    connection: PreforkConnection | None = None
    failures: int = 0
    """How many launchers in a row could not be used."""
    _is_enabled: bool = False
    _next_at: float = 0.0
    _check_at: float = 0.0
    _leaving: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """Launchers told to leave, which are about to."""

    def open(self) -> None:
        """Load the training packages in the background, if a process can be forked here."""
        can = sys.platform == "linux" and bool(detect().torch)
        self._is_enabled = self.settings.warm_launcher and can
        self._write_status("off")
        self.tick()

    def start(
        self,
        folder: RunDir,
        *,
        gpu: int | None = None,
        command: Sequence[str] = process.RUNNER,
        besides: Mapping[str, str] = MappingProxyType({}),
    ) -> Process:
        """Start the process that trains what is in the folder, in the quickest way there is."""
        self._receive()
        self._restart_if_stale()
        if (
            self.connection is not None
            and self.connection.is_ready
            and tuple(command) == process.RUNNER
        ):
            try:
                made = self.connection.fork_run(folder, process.environment(gpu) | dict(besides))
            except OSError as error:
                self._back_off(error)
            else:
                self.failures = 0
                return made
        return process.start(folder, gpu=gpu, command=command, besides=besides)

    def tick(self) -> None:
        """Do what is to be done about the launcher now; never waits."""
        now = time.monotonic()
        self._receive()
        if self.connection is None and self._is_enabled and now >= self._next_at:
            self._start_server()
        elif now >= self._check_at:
            self._check_at = now + CHECK_SECONDS
            self._restart_if_stale()
            self._leaving = [child for child in self._leaving if child.poll() is None]

    def close(self) -> None:
        """Let the launcher leave; the runs it made go on."""
        self._is_enabled = False
        self._disconnect()
        self._write_status("off")

    def _start_server(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs, (self.settings.home / "launcher.log").open("wb") as printed:
                child = subprocess.Popen(  # noqa: S603 -- our own interpreter, our own path
                    [sys.executable, "-m", process.PREFORK_SERVER, str(self.settings.runs)],
                    stdin=theirs.fileno(),
                    stdout=printed,
                    stderr=printed,
                    # The hub's client reads its address once, when it is imported.
                    env=process.environment(None) | process.hub_environment(self.settings),
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            self._back_off(error)
            return
        self.connection = PreforkConnection(child, ours, _install_stamp())
        self._write_status("loading")

    def _receive(self) -> None:
        """Take in what the launcher has said, if anything: that it is ready, or why not."""
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
        """Change the launcher for a new one if it is old, or what it has loaded is."""
        if self.connection is None:
            return
        if (
            self.connection.stamp != _install_stamp()
            or time.monotonic() - self.connection.born > MAX_AGE_SECONDS
        ):
            log.info("launcher_renewed")
            self._disconnect()
            self._start_server()

    def _back_off(self, why: OSError) -> None:
        """Do without for a while; for longer, the more often it comes to this."""
        patience = RETRY_SECONDS[min(self.failures, len(RETRY_SECONDS) - 1)]
        self.failures += 1
        self._next_at = time.monotonic() + patience
        log.warning("launcher_lost", extra={"why": str(why), "again_in_seconds": patience})
        self._disconnect()
        self._write_status("broken", str(why))

    def _disconnect(self) -> None:
        if self.connection is not None:
            self.connection.socket.close()
            if not self.connection.is_ready:
                self.connection.child.kill()  # It has made nothing yet.
            self._leaving.append(self.connection.child)
            self.connection = None

    def _write_status(self, state: board.State, why: str = "") -> None:
        told = board.LauncherStatus(state=state, why=why)
        with suppress(OSError, psutil.NoSuchProcess):  # Only pages and `studio doctor` read it.
            if self.connection is not None:
                pid = self.connection.child.pid
                told = told.model_copy(update={"pid": pid, "started": process_start_time(pid)})
            board.write(self.settings, told)


def _to_process(pid: int, folder: RunDir) -> Process:
    try:
        return Process(pid, process_start_time(pid), folder=folder)
    except psutil.NoSuchProcess as error:
        raise ConnectionResetError("The process ended before it was known.") from error


def _install_stamp() -> InstallStamp:
    """Return what changes when packages are installed, or the studio's own code is edited."""
    places = [Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")]
    sources = sorted(Path(studio.__file__).parent.rglob("*.py"))
    return tuple(path.stat().st_mtime for path in (*places, *sources))
