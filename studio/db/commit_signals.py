"""Wake the processes of one machine when another one commits to the database file.

A waiting process owns a datagram socket in a folder of the home; one that has committed sends a few
bytes to each. Nothing depends on it: a message that is lost only means that the commit is found at
the next look. Messages stay in the socket until they are read, so a commit between a look and the
wait ends the wait at once.
"""

import logging
import os
import secrets
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

from studio.processes import unix_sockets

log = logging.getLogger(__name__)

FOLDER = "waiting"
"""Where in the home the sockets are."""

_PROCESS = secrets.token_hex(8)
"""Not the pid alone: two containers with one home may have the same."""

_MESSAGE_BYTES = 100


def announce_commits(engine: Engine, folder: Path) -> None:
    """Have an engine announce each commit that has changed something."""

    def mark(connection: Connection) -> None:
        connection.info["has_committed"] = True

    def announce_marked(connection: DBAPIConnection | None, entry: ConnectionPoolEntry) -> None:
        # There is no event after a commit, but a session then returns its connection.
        if not entry.info.pop("has_committed", False):
            return
        driver: Any = connection
        changes = driver.total_changes if driver is not None else -1
        if changes != entry.info.get("announced", 0):
            entry.info["announced"] = changes
            announce(folder)

    event.listen(engine, "commit", mark)
    event.listen(engine, "checkin", announce_marked)


def announce(folder: Path) -> None:
    """Tell all who wait that there was a commit; never blocks, never fails."""
    with suppress(OSError):  # Most often no process has ever waited.
        paths = list(folder.iterdir())
        if paths:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)  # noqa: FBT003 -- socket's own signature
                for path in paths:
                    _send(sender, path)


def _send(sender: socket.socket, path: Path) -> bool:
    """Send a message. Return false if no process owns the socket any more."""
    try:
        with unix_sockets.socket_address(path) as address:
            sender.sendto(_identity(), address)
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:
        return True  # It is full of messages that will be read.
    return True


def _identity() -> bytes:
    return f"{_PROCESS} {os.getpid()} {threading.get_ident()}".encode()


class CommitMailbox:
    """Hears of commits, except those of the thread that has opened it."""

    def __init__(self, folder: Path) -> None:
        """Open a socket in a folder.

        Raises:
            OSError: There can be none: the file system has no sockets, or the path is too long.

        """
        folder.mkdir(mode=0o700, exist_ok=True)
        _remove_abandoned(folder)
        self._path = folder / f"{os.getpid()}-{secrets.token_hex(4)}"
        self._own = _identity()
        self._is_first = True
        self.bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            with unix_sockets.socket_address(self._path) as address:
                self.bell.bind(address)
            self._path.chmod(0o600)
        except OSError:
            self.close()
            raise
        self.bell.setblocking(False)  # noqa: FBT003 -- socket's own signature

    def has_new_commit(self) -> bool:
        """Whether there was a commit since the last call; true on the first call."""
        is_new, self._is_first = self._is_first, False
        with suppress(BlockingIOError):
            while True:
                is_new |= self.bell.recv(_MESSAGE_BYTES) != self._own
        return is_new

    def close(self) -> None:
        self.bell.close()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove the sockets of processes that were killed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)  # noqa: FBT003 -- socket's own signature
        for path in folder.iterdir():
            if not _send(sender, path):
                path.unlink(missing_ok=True)
