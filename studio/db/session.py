"""One engine a process, one session a request: commit at the edge, never in the middle."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import OperationalError
from sqlmodel import Session, create_engine

from studio.errors import DiskFullError, UnavailableError

FIXED = (3, 51, 3)
"""The first SQLite without the WAL-reset bug, which can corrupt a database under two writers."""

PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=30000", "foreign_keys=ON")
"""FULL: what was acknowledged survives a power cut, which NORMAL does not promise in WAL mode."""


def connect(database: Path) -> Engine:
    """Open the database file with the newest SQLite at hand."""
    engine = create_engine(
        f"sqlite:///{database}",
        module=driver(),
        connect_args={"check_same_thread": False},
        hide_parameters=True,  # what people bring does not belong into a log
    )
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def driver() -> ModuleType:
    """Return Python's SQLite, or pysqlite3's newer one when Python's has the WAL-reset bug."""
    if sqlite3.sqlite_version_info >= FIXED:
        return sqlite3
    try:
        from pysqlite3 import dbapi2  # noqa: PLC0415 -- optional dependency
    except ImportError:
        return sqlite3
    newer: ModuleType = dbapi2
    return newer


@contextmanager
def unit_of_work(engine: Engine) -> Iterator[Session]:
    """Open a session that commits whole or not at all.

    Raises:
        DiskFullError: there was no room to write; nothing was changed.
        UnavailableError: another process held the database longer than 30 s.

    """
    writer = engine.execution_options(begin="BEGIN IMMEDIATE")
    try:
        with Session(writer, expire_on_commit=False) as session, session.begin():
            yield session
    except OperationalError as error:
        raise _explained(error) from error


@contextmanager
def reading(engine: Engine) -> Iterator[Session]:
    """Open a session that sees one moment of the database and changes nothing."""
    with Session(engine, expire_on_commit=False) as session:
        yield session


def _explained(error: OperationalError) -> Exception:
    reason = str(error.orig)
    if "full" in reason:
        return DiskFullError(
            "The disk is full; nothing was saved.", hint="Free some space, then try again."
        )
    if "locked" in reason:
        return UnavailableError("The database is busy.", hint="Try again in a moment.")
    return error


def _prepare(connection: DBAPIConnection, _record: object) -> None:
    # The driver must not begin transactions by itself: `_begin` does, at the right moment.
    setattr(connection, "isolation_level", None)  # noqa: B010 -- sqlite3's, not in the protocol
    cursor = connection.cursor()
    for pragma in PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    # A transaction that reads first and writes later would fail at once if another wrote in
    # between; one that says so at its beginning waits for its turn.
    connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))
