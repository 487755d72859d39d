"""Everything that is different on PostgreSQL: connections, transactions, news of commits, errors.

Writers take turns, as on SQLite: each transaction of `unit_of_work` first takes one advisory lock,
so what it has read stays true until it commits. Readers never wait, and see one snapshot.
"""

import json
import logging
import select
import socket
import threading
from contextlib import closing, suppress
from functools import partial
from typing import Any

from sqlalchemy import URL, Connection, Engine, MetaData, Table, event, inspect, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DatabaseError, DataError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.schema import SetTableComment
from sqlmodel import create_engine

from studio.errors import DiskFullError, InvalidError, StudioError, UnavailableError

log = logging.getLogger(__name__)

POOL_SIZE, MAX_OVERFLOW = 5, 35
"""Connections to keep, and to open besides: as many as threads that answer requests."""

CONNECT_SECONDS = 5
"""How long a server may take to answer a new connection."""

CHANNEL = "studio_commits"
_WRITERS = 0x5D10
"""The advisory lock of transactions that write."""

POLL_SECONDS = 5.0
"""How often to look for commits that were not announced, and whether the server still answers."""
RECONNECT_SECONDS = 0.5

_BEGIN_WRITING = (
    # A snapshot would be as old as the wait for the lock.
    f"SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SELECT pg_advisory_xact_lock({_WRITERS})"
)
_ANNOUNCE = f"SELECT pg_notify('{CHANNEL}', '') WHERE pg_current_xact_id_if_assigned() IS NOT NULL"
"""A transaction has an id once it has written; the server announces it when it commits."""

_PLAIN = {"no_parameters": True}
"""Only without parameters, the driver sends several statements at once."""


def open_engine(url: str, *, busy_seconds: float, writing: str) -> Engine:
    """Open a database on a server; `writing` is the `begin` option of transactions that write.

    Raises:
        InvalidError: The URL is not one of PostgreSQL.
        UnavailableError: The driver is not installed.

    """
    engine = _create_engine(url)
    event.listen(engine, "connect", partial(_set_up, int(busy_seconds * 1000)))
    event.listen(engine, "begin", partial(_begin, writing))
    event.listen(engine, "commit", _announce)
    return engine


def without_password(url: str) -> str:
    """Return an address as it may be shown."""
    return _parse(url).set(drivername="postgresql").render_as_string(hide_password=True)


_MARKED = "alembic_version"


def home_of(connection: Connection) -> str | None:
    """Return the ID of the home that a database belongs to; None if it belongs to no one yet."""
    return inspect(connection).get_table_comment(_MARKED)["text"]


def set_home(connection: Connection, home_id: str) -> None:
    """Mark a database with the ID of its home, as a comment on a table: dumps keep it."""
    connection.execute(SetTableComment(Table(_MARKED, MetaData(), comment=home_id)))


def _parse(url: str) -> URL:
    with suppress(ArgumentError):
        parsed = make_url(url)
        if parsed.get_backend_name() == "postgresql":
            return parsed.set(drivername="postgresql+psycopg")
    raise InvalidError(
        "STUDIO_DATABASE is not the address of a PostgreSQL database.",
        hint="Write it as postgresql://user:password@host/name.",
    )


def _create_engine(url: str) -> Engine:
    try:
        return create_engine(
            _parse(url),
            connect_args={"connect_timeout": CONNECT_SECONDS},
            hide_parameters=True,  # user data must not appear in logs
            isolation_level="REPEATABLE READ",
            json_serializer=_to_json,
            max_overflow=MAX_OVERFLOW,
            pool_pre_ping=True,
            pool_size=POOL_SIZE,
        )
    except ImportError as error:
        raise UnavailableError(
            "The driver for PostgreSQL is not installed.",
            hint="pip install 'mantissa-studio[postgres]'",
        ) from error


def _to_json(value: object) -> str:
    """Write JSON with NaN and infinity as strings, which validated columns read as numbers."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(json.loads(json.dumps(value), parse_constant=str))


def _set_up(busy_milliseconds: int, connection: DBAPIConnection, _record: object) -> None:
    from psycopg.types.numeric import FloatLoader  # noqa: PLC0415 -- optional dependency

    driver: Any = connection
    driver.adapters.register_loader("numeric", FloatLoader)  # averages, as on SQLite
    driver.execute(f"SET lock_timeout = {busy_milliseconds}")
    driver.commit()


def _begin(writing: str, connection: Connection) -> None:
    if connection.get_execution_options().get("begin") == writing:
        connection.exec_driver_sql(_BEGIN_WRITING, execution_options=_PLAIN)


def _announce(connection: Connection) -> None:
    connection.exec_driver_sql(_ANNOUNCE, execution_options=_PLAIN)


_BELL_BYTES = 2**12

_BUSY = ("40001", "40P01", "55P03", "53300")
_DISK_FULL = ("53100",)


def explanation(error: DatabaseError | PoolTimeoutError) -> StudioError | None:
    """Return an error of the server as one that users can act on; None if it is a bug of ours."""
    state = getattr(getattr(error, "orig", None), "sqlstate", None) or ""
    if isinstance(error, PoolTimeoutError) or state in _BUSY:
        return UnavailableError(
            "The database is busy; nothing was saved.", hint="Try again in a moment."
        )
    if state in _DISK_FULL:
        return DiskFullError(
            "The disk is full; nothing was saved.", hint="Free some space, then try again."
        )
    if isinstance(error, DataError):
        return InvalidError("A text contains a character that cannot be stored.")
    reason = str(error.orig).strip().partition("\n")[0]
    # Without a state, the server was not reached, or refused the connection.
    if (not state and isinstance(error, OperationalError)) or state.startswith(("08", "28", "57P")):
        return UnavailableError(
            f"The database server cannot be reached: {reason}.",
            hint="Check STUDIO_DATABASE and that the server is running, then try again.",
        )
    if state in {"25006", "42501", "58030"}:
        return UnavailableError(
            f"The database cannot be used: {reason}.",
            hint="Check the server's disk and the user's permissions, then try again.",
        )
    return None


class CommitListener:
    """Hears of commits on a connection of its own, from a thread that reconnects when it drops."""

    def __init__(self, engine: Engine, *, poll_seconds: float = POLL_SECONDS) -> None:
        self._engine = engine
        self._poll_seconds = poll_seconds
        self.bell, self._rope = socket.socketpair()
        for end in (self.bell, self._rope):
            end.setblocking(False)  # noqa: FBT003 -- socket's own signature
        self._report()
        self._ours, self._theirs = socket.socketpair()
        self._thread = threading.Thread(target=self._listen, name="commits", daemon=True)
        self._thread.start()

    def has_new_commit(self) -> bool:
        """Whether there was a commit since the last call; true on the first call."""
        is_new = False
        with suppress(BlockingIOError):
            while self.bell.recv(_BELL_BYTES):
                is_new = True
        return is_new

    def close(self) -> None:
        self._ours.close()
        self._thread.join()
        for end in (self._theirs, self.bell, self._rope):
            end.close()

    def _report(self) -> None:
        with suppress(BlockingIOError):  # Many reports wait to be read.
            self._rope.send(b"1")

    def _listen(self) -> None:
        is_closing = False
        while not is_closing:
            try:
                is_closing = self._follow_connection()
            except self._engine.dialect.loaded_dbapi.Error as error:
                log.warning("commits_unheard", extra={"reason": type(error).__name__})
                is_closing = self._closes_within(RECONNECT_SECONDS)

    def _follow_connection(self) -> bool:
        """Listen until the watcher closes; return true then."""
        # The pool's connections are for transactions, and this one lives as long as the process.
        with closing(self._connect()) as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            snapshot = _snapshot(connection)
            self._report()
            while True:
                readable, _, _ = select.select(
                    [connection, self._theirs], [], [], self._poll_seconds
                )
                if self._theirs in readable:
                    return True
                before = snapshot
                if not readable:
                    snapshot = _snapshot(connection)
                if [*connection.notifies(timeout=0)] or snapshot != before:
                    self._report()

    def _connect(self) -> Any:  # noqa: ANN401 -- psycopg is an optional dependency
        dialect = self._engine.dialect
        given, options = dialect.create_connect_args(self._engine.url)
        options = dict(options) | {"connect_timeout": CONNECT_SECONDS, "autocommit": True}
        return dialect.loaded_dbapi.connect(*given, **options)

    def _closes_within(self, seconds: float) -> bool:
        return bool(select.select([self._theirs], [], [], seconds)[0])


def _snapshot(connection: Any) -> object:  # noqa: ANN401 -- psycopg is an optional dependency
    """Return what changes with every commit, also with one whose announcement was lost."""
    return connection.execute("SELECT pg_current_snapshot()::text").fetchone()
