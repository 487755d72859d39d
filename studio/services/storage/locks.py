"""File locks of the home: at most one web process and one worker, and exclusive maintenance.

    web.lock      held by the process that serves the pages
    worker.lock   held by the process that runs the queue
    home.lock     shared by all processes with the database open; exclusive to upgrade or restore it

The kernel releases a lock when its process ends, however it ends. The contents of the files only
describe the holder.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Literal, TextIO

from studio.errors import ConflictError, DiskFullError, UnavailableError

Role = Literal["web", "worker"]

ROLES: tuple[Role, ...] = ("web", "worker")
HOME_LOCK = "home.lock"
LOCK_FILES = frozenset({HOME_LOCK, *(f"{role}.lock" for role in ROLES)})

SHARED_TIMEOUT_SECONDS = 60.0
"""How long to wait for another process that upgrades or restores the home."""
EXCLUSIVE_TIMEOUT_SECONDS = 3.0
"""How long to wait for processes that are just opening or leaving the home."""
_POLL_SECONDS = 0.05


@contextmanager
def single_process(
    home: Path, role: Role, address: str, *, patience_seconds: float = 0.0
) -> Iterator[None]:
    """Lock the folder for one process per role, waiting for up to `patience_seconds`.

    Raises:
        ConflictError: another process with this role uses the folder; the message names it.
        UnavailableError: the folder cannot be written.

    """
    with _lock_file(home, role) as lock:
        _lock(home, lock.fileno(), fcntl.LOCK_EX, patience_seconds)
        lock.truncate(0)
        now = datetime.now().astimezone()
        lock.write(f"process {os.getpid()} since {now:%Y-%m-%d %H:%M}, {address}")
        lock.flush()
        yield


@contextmanager
def explain_os_errors(home: Path) -> Iterator[None]:
    """Translate errors of using a folder.

    Raises:
        DiskFullError: the disk is full.
        UnavailableError: the folder cannot be created or written.

    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFullError(
                f"The disk that holds {home} is full.", hint="Free some space."
            ) from error
        raise UnavailableError(
            f"{home} cannot be used: {error.strerror}.",
            hint="Choose another folder with STUDIO_HOME.",
        ) from error


class HomeLock:
    """A shared lock on the home for as long as it is open; can become exclusive for a while.

    Raises:
        ConflictError: another process kept it exclusive for longer than the timeout.
        UnavailableError: the folder cannot be written.

    """

    def __init__(self, home: Path) -> None:
        self._home = home
        with explain_os_errors(home):
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(home / HOME_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(home, self._file, fcntl.LOCK_SH, SHARED_TIMEOUT_SECONDS)
        except ConflictError:
            self.close()
            raise

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep all other processes out.

        Raises:
            ConflictError: other processes use the home; the message names them.

        """
        _lock(self._home, self._file, fcntl.LOCK_EX, EXCLUSIVE_TIMEOUT_SECONDS)
        try:
            yield
        finally:
            _lock(self._home, self._file, fcntl.LOCK_SH, SHARED_TIMEOUT_SECONDS)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def _lock(home: Path, file: int, kind: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError as error:
            # Two processes that wait for each other must both release their shared lock.
            fcntl.flock(file, fcntl.LOCK_UN)
            if time.monotonic() >= end:
                raise _in_use_error(home) from error
            time.sleep(_POLL_SECONDS)
        else:
            return


def _lock_file(home: Path, role: Role) -> TextIO:
    with explain_os_errors(home):
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        return (home / f"{role}.lock").open("a+", encoding="utf-8")


def _in_use_error(home: Path) -> ConflictError:
    holders = "; ".join(
        f"{role}: {holder}" for role in ROLES if (holder := describe_holder(home, role))
    )
    return ConflictError(
        f"Another studio is already using {home} ({holders or 'it is being changed or copied'}).",
        hint="Open that studio, stop it, or choose another folder with STUDIO_HOME.",
    )


def describe_holder(home: Path, role: Role) -> str:
    """Return how the process that holds a lock describes itself; empty if none does."""
    path = home / f"{role}.lock"
    if not path.exists():
        return ""
    with path.open("r+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return lock.read().strip() or "starting"
    return ""
