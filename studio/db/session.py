"""One engine per process, one session per request: commit once, at the end of a request.

Commits of other processes are detected in microseconds.
"""

import logging
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Protocol

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.exc import DatabaseError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlmodel import Session, create_engine, func, select

from studio.db import commit_signals, postgres
from studio.db.column_types import HOME_DIRS
from studio.db.commit_signals import CommitMailbox
from studio.errors import DiskFullError, StudioError, UnavailableError
from studio.settings import Settings

log = logging.getLogger(__name__)

FIRST_SAFE_SQLITE = (3, 51, 3)
"""The first SQLite without the WAL-reset bug, which can corrupt a database under two writers."""

BUSY_SECONDS = 30.0
"""How long a writer waits for another writer before it gives up."""

PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON")
"""FULL: commits survive a power cut, which NORMAL does not guarantee in WAL mode."""

_WRITING = "BEGIN IMMEDIATE"
"""The `begin` option of transactions that write."""

NO_TRANSACTION = "none"
"""The `begin` option for the few statements that SQLite only runs outside a transaction."""


def open_database(settings: Settings, *, busy_seconds: float = BUSY_SECONDS) -> Engine:
    """Open the database of a studio: the file in its home, or a database on a server.

    Raises:
        InvalidError: The server's address is not valid.
        UnavailableError: The driver for the server is not installed.

    """
    url = settings.database.get_secret_value()
    if not url:
        return open_engine(settings.database_file, busy_seconds=busy_seconds)
    engine = postgres.open_engine(url, busy_seconds=busy_seconds, writing=_WRITING)
    HOME_DIRS[engine.dialect] = settings.home
    return engine


def open_engine(database: Path, *, busy_seconds: float = BUSY_SECONDS) -> Engine:
    """Open the database file with the newest SQLite available."""
    engine = create_engine(
        f"sqlite:///{database}",
        module=sqlite_driver(),
        connect_args={"check_same_thread": False},
        hide_parameters=True,  # user data must not appear in logs
        max_overflow=-1,  # a connection is only a file handle, so do not limit their number
    )
    HOME_DIRS[engine.dialect] = database.absolute().parent
    event.listen(engine, "connect", partial(_set_pragmas, int(busy_seconds * 1000)))
    event.listen(engine, "begin", _begin)
    commit_signals.announce_commits(engine, _signals(engine))
    return engine


def _signals(engine: Engine) -> Path:
    return HOME_DIRS[engine.dialect] / commit_signals.FOLDER


def is_on_server(bind: Engine | Connection) -> bool:
    """Whether the database is on a server, and not a file."""
    return bind.dialect.name != "sqlite"


def describe_database(settings: Settings) -> str:
    """Return where the database is, without the password."""
    url = settings.database.get_secret_value()
    return postgres.without_password(url) if url else str(settings.database_file)


def current_time(db: Session) -> datetime:
    """Return the time by the clock that all processes with this database share."""
    if is_on_server(db.get_bind()):
        time: datetime = db.exec(select(func.clock_timestamp())).one()
        return time.astimezone(UTC)
    return datetime.now(UTC)


def count_bytes(db: Session) -> int:
    """Return the size of the database, with the write-ahead log if it is a file."""
    bind = db.get_bind()
    if is_on_server(bind):
        return int(db.exec(select(func.pg_database_size(func.current_database()))).one())
    file = Path(bind.engine.url.database or "")
    files = (file, file.with_name(f"{file.name}-wal"))
    return sum(one.stat().st_size for one in files if one.exists())


def sqlite_driver() -> ModuleType:
    """Return Python's SQLite, or pysqlite3's newer one when Python's has the WAL-reset bug."""
    if sqlite3.sqlite_version_info >= FIRST_SAFE_SQLITE:
        return sqlite3
    try:
        from pysqlite3 import dbapi2  # noqa: PLC0415 -- optional dependency
    except ImportError:
        return sqlite3
    newer: ModuleType = dbapi2
    return newer


@contextmanager
def unit_of_work(engine: Engine) -> Iterator[Session]:
    """Open a session that commits everything or nothing.

    Raises:
        DiskFullError: the disk is full; nothing was changed.
        UnavailableError: another process locked the database too long, or it cannot be used.

    """
    with (
        explain_errors(),
        Session(writer(engine), expire_on_commit=False) as session,
        session.begin(),
    ):
        yield session


def writer(engine: Engine) -> Engine:
    """Return the engine for transactions that write: only one at a time goes on."""
    return engine.execution_options(begin=_WRITING)


@contextmanager
def read_session(engine: Engine) -> Iterator[Session]:
    """Open a read-only session on one snapshot of the database.

    Raises:
        UnavailableError: the database cannot be used now.

    """
    with explain_errors(), Session(engine, expire_on_commit=False) as session:
        yield session


@contextmanager
def explain_errors() -> Iterator[None]:
    """Translate database errors into errors that users can act on.

    Raises:
        DiskFullError: the disk is full.
        InvalidError: the database cannot store a value.
        UnavailableError: the database is busy, damaged or inaccessible.

    """
    try:
        yield
    except (DatabaseError, PoolTimeoutError) as error:
        explained = _explanation(error)
        if explained is None:
            raise
        raise explained from error


def _explanation(error: DatabaseError | PoolTimeoutError) -> StudioError | None:
    if isinstance(error, PoolTimeoutError) or hasattr(error.orig, "sqlstate"):
        return postgres.explanation(error)
    reason = str(error.orig)
    if "disk is full" in reason:
        return DiskFullError(
            "The disk is full; nothing was saved.", hint="Free some space, then try again."
        )
    if "locked" in reason:
        return UnavailableError(
            "The database is busy; nothing was saved.", hint="Try again in a moment."
        )
    if "malformed" in reason or "not a database" in reason:
        return UnavailableError(
            "The database is damaged.",
            hint="Stop the studio and restore a backup: studio restore FILE --force.",
        )
    if "disk I/O" in reason or "readonly" in reason or "unable to open" in reason:
        return UnavailableError(
            f"The database cannot be used: {reason}.",
            hint="Check the disk and the file permissions, then try again.",
        )
    return None


def _set_pragmas(busy_milliseconds: int, connection: DBAPIConnection, _record: object) -> None:
    # The driver must not start transactions by itself: `_begin` does, at the right time.
    setattr(connection, "isolation_level", None)  # noqa: B010 -- sqlite3's, not in the protocol
    cursor = connection.cursor()
    # The timeout comes first, because the other pragmas may also have to wait.
    for pragma in (f"busy_timeout={busy_milliseconds}", *PRAGMAS):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    # A transaction that reads first and writes later fails immediately if another one wrote in
    # between; BEGIN IMMEDIATE waits for its turn.
    begin = connection.get_execution_options().get("begin", "BEGIN")
    if begin != NO_TRANSACTION:
        connection.exec_driver_sql(begin)


class CommitWatcher(Protocol):
    """Detects commits of all other connections."""

    @property
    def bell(self) -> socket.socket | None:
        """Readable from a new commit on until the next question; None if only those find one."""

    def has_new_commit(self) -> bool:
        """Whether there was a commit since the last call; true on the first call."""


class _FileWatcher:
    """Detects commits of all connections except its own, which must never write.

    Its bell, if there is one, rings for all commits that are announced.
    """

    def __init__(self, cursor: DBAPICursor, mailbox: CommitMailbox | None) -> None:
        self._cursor = cursor
        self._mailbox = mailbox
        self._last: object = None
        self.bell: socket.socket | None = mailbox.bell if mailbox else None

    def has_new_commit(self) -> bool:
        if self._mailbox is not None:
            self._mailbox.has_new_commit()  # Empties it; the file knows about all commits.
        self._cursor.execute("PRAGMA data_version")
        before, self._last = self._last, self._cursor.fetchone()
        return self._last != before


@contextmanager
def watch_commits(engine: Engine) -> Iterator[CommitWatcher]:
    """Watch a database over a dedicated connection: no commit is missed by asking."""
    if is_on_server(engine):
        with closing(postgres.CommitListener(engine)) as listener:
            yield listener
        return
    # A raw driver connection, because a session would start a transaction, which keeps seeing the
    # same snapshot of the database.
    with _open_mailbox(engine) as mailbox, closing(engine.raw_connection()) as connection:
        yield _FileWatcher(connection.cursor(), mailbox)


@contextmanager
def wait_for_commits(engine: Engine) -> Iterator[CommitWatcher]:
    """Watch a database for a thread that sleeps on the watcher's socket, if there can be one.

    On a file, it does not see the commits of its own thread, nor those that are not announced: by
    other programs, on other machines, or by a process that is killed right after its commit.
    """
    if is_on_server(engine):
        with watch_commits(engine) as listener:
            yield listener
        return
    with _open_mailbox(engine) as mailbox:
        if mailbox is not None:
            yield mailbox
            return
        with closing(engine.raw_connection()) as connection:
            yield _FileWatcher(connection.cursor(), None)


@contextmanager
def _open_mailbox(engine: Engine) -> Iterator[CommitMailbox | None]:
    """Open a mailbox beside the database file; None if there can be none."""
    try:
        mailbox = CommitMailbox(_signals(engine))
    except OSError as error:
        log.warning("commits_not_announced", extra={"reason": str(error)})
        yield None
        return
    with closing(mailbox):
        yield mailbox
