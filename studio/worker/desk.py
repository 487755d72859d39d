"""The desk on the worker's side: a socket that listens, and a process once somebody connects.

A worker that ends takes its desk along. One that finds another's desk still listening leaves it the
socket, and takes it over when that is gone.
"""

import logging
import os
import select
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field

from studio import desk
from studio.settings import Settings
from studio.worker import process

log = logging.getLogger(__name__)

WAITING = 64
"""How many may wait to be answered."""

LOOK_SECONDS = 5.0
"""How often a socket that another worker holds is tried again."""

PATIENCE_SECONDS = 2.0
"""The least time between two desks: one that dies as it starts must not be all a worker does."""


@dataclass(slots=True)
class Desk:
    settings: Settings
    child: subprocess.Popen[bytes] | None = None
    _listener: socket.socket | None = None
    _lifeline: int = -1
    _next_at: float = field(default=float("-inf"))

    def tend(self) -> None:
        """Start a desk if somebody waits for one; never waits itself."""
        now = time.monotonic()
        if now < self._next_at:
            return
        if self._listener is None:
            self._next_at = now + LOOK_SECONDS
            self._listen()
        elif self._is_wanted(self._listener):
            self._next_at = now + PATIENCE_SECONDS
            self._start(self._listener)

    def end(self) -> None:
        """Let the desk go, and the socket with it."""
        if self._listener is not None:
            self._listener.close()
            desk.path(self.settings.home).unlink(missing_ok=True)
            self._listener = None
        self._let_go()
        if self.child is not None:
            self.child.wait()

    def _listen(self) -> None:
        home = self.settings.home
        try:
            with suppress(OSError):
                desk.connect(home, timeout=1).close()
                return  # Another worker's.
            desk.path(home).unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX)
            with desk.address(home) as where:
                listener.bind(where)
            desk.path(home).chmod(0o600)
            listener.listen(WAITING)
            self._listener = listener
            self._next_at = float("-inf")
        except OSError as error:
            log.warning("desk_not_opened", extra={"why": str(error)})

    def _is_wanted(self, listener: socket.socket) -> bool:
        """Whether somebody has connected, and no desk takes what comes."""
        if self.child is not None and self.child.poll() is None:
            return False
        return bool(select.select([listener], [], [], 0)[0])

    def _start(self, listener: socket.socket) -> None:
        self._let_go()
        ours, self._lifeline = os.pipe()
        files = (listener.fileno(), ours)
        try:
            with (self.settings.home / "desk.log").open("wb") as printed:
                self.child = subprocess.Popen(  # noqa: S603 -- our own interpreter, our own module
                    [sys.executable, "-m", desk.MODULE, *map(str, files)],
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=printed,
                    env=process.environment(None),
                    pass_fds=files,
                    start_new_session=True,
                )
        except OSError as error:
            log.warning("desk_not_started", extra={"why": str(error)})
        else:
            log.info("desk_started", extra={"pid": self.child.pid})
        finally:
            os.close(ours)

    def _let_go(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
