"""Supervise the worker of `studio serve`: restart it if it dies, stop it with the web process.

Both processes hold one end of a socket pair. The worker exits when the other end is closed, however
the web process ends, and uses the socket to report why it could not continue.
"""

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import FrameType

from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.services.workers import workers
from studio.services.workers.workers import WorkerExit
from studio.settings import Settings
from studio.worker.fault_isolation import catch_errors

log = logging.getLogger(__name__)

WORKER_COMMAND = (sys.executable, "-m", "studio", "worker")

RESTART_DELAYS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Seconds until the next worker starts, by the number of consecutive deaths."""

STABLE_SECONDS = 60.0
"""A worker that lived this long started well, so its death counts as the first in a row."""

SHUTDOWN_SECONDS = 1.8
"""How long a shutdown may take after a signal, unless runs are drained."""

_MAX_MESSAGE_BYTES = 2**13


@dataclass(slots=True)
class Supervisor:
    """Keeps one worker running, from a thread of the web process."""

    engine: Engine
    settings: Settings
    command: Sequence[str] = WORKER_COMMAND
    pauses: Sequence[float] = RESTART_DELAYS
    steady_seconds: float = STABLE_SECONDS
    child: subprocess.Popen[bytes] | None = None
    _lifeline: socket.socket | None = None
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the worker, and restart it whenever it ends."""
        self._thread = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        self._thread.start()

    def request_stop(self) -> None:
        """Ask the worker to stop; may be called more than once."""
        self._stopping.set()
        if self.child is not None:
            self.child.terminate()

    def stop(self, seconds: float) -> None:
        """Wait for the worker to stop, and kill it after `seconds`."""
        self.request_stop()
        if self._thread is not None:
            self._thread.join(seconds)
        if self.child is not None and self.child.poll() is None:
            log.warning("worker_killed", extra={"pid": self.child.pid})
            self.child.kill()
            self.child.wait()
        workers.clear_exit(self.settings)

    def _supervise(self) -> None:
        deaths = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            reason = self._run()
            if self._stopping.is_set():
                return
            deaths = 1 if time.monotonic() - started > self.steady_seconds else deaths + 1
            pause = self.pauses[min(deaths, len(self.pauses)) - 1]
            self._record(reason, deaths, pause)
            self._stopping.wait(pause)

    def _run(self) -> str:
        """Run one worker until it exits. Return how it ended, as a sentence."""
        try:
            self.child = self._spawn()
        except OSError as error:
            return workers.describe_start_failure(error)
        if self._stopping.is_set():  # a signal arrived in between
            self.child.terminate()
        return workers.describe_exit(self.child.wait())

    def _spawn(self) -> subprocess.Popen[bytes]:
        if self._lifeline is not None:
            self._lifeline.close()
        self._lifeline, theirs = socket.socketpair()
        with theirs:
            lifeline = ("--lifeline", str(theirs.fileno()))
            return subprocess.Popen(  # noqa: S603 -- our own interpreter, our own module
                [*self.command, *lifeline], pass_fds=[theirs.fileno()]
            )

    def _record(self, reason: str, deaths: int, pause: float) -> None:
        """Record how a worker ended, and deregister it, as no run starts until the next worker."""
        next_at = datetime.now(UTC) + timedelta(seconds=pause)
        death = WorkerExit(
            reason=reason, words=self._exit_message(), deaths=deaths, next_at=next_at
        )
        log.error(
            "worker_died", extra={"reason": reason, "deaths": deaths, "again_in_seconds": pause}
        )
        workers.write_exit(self.settings, death)
        with catch_errors() as errors, unit_of_work(self.engine) as db:
            workers.deregister_process(db, self.child.pid if self.child else 0)
        for error in errors:  # it will count as gone when its heartbeat is overdue
            log.warning("worker_not_retired", exc_info=error)

    def _exit_message(self) -> str:
        if self._lifeline is None:
            return ""
        self._lifeline.setblocking(False)  # noqa: FBT003 -- socket's own signature
        try:
            return self._lifeline.recv(_MAX_MESSAGE_BYTES).decode("utf-8", "replace").strip()
        except OSError:
            return ""


@dataclass(slots=True)
class Shutdown:
    """Ends the web process and the worker together, within a time limit."""

    supervisor: Supervisor | None
    settings: Settings
    _started: threading.Event = field(default_factory=threading.Event)

    @property
    def seconds(self) -> float:
        """How long the shutdown may take: drained runs save a checkpoint first."""
        drains = self.supervisor is not None and self.settings.on_stop == "drain"
        return SHUTDOWN_SECONDS + (self.settings.save_grace_seconds if drains else 0.0)

    def start(self) -> None:
        """Wait in a thread, because a signal handler must neither start a thread nor block."""
        threading.Thread(target=self._end, name="ending", daemon=True).start()

    def begin(self) -> None:
        """Ask the worker to stop now; force everything to end if that takes too long."""
        if not self._started.is_set():
            self._started.set()

    def exit_early(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal that arrives before or after the server handles signals."""
        raise SystemExit(0)

    def _end(self) -> None:
        self._started.wait()
        if self.supervisor is not None:
            self.supervisor.request_stop()
        # A request that computes in a thread would keep the process alive.
        time.sleep(self.seconds)
        log.warning("ended_by_force", extra={"after_seconds": self.seconds})
        if self.supervisor is not None and self.supervisor.child is not None:
            self.supervisor.child.kill()
        os._exit(0)
