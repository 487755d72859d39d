"""A consistent copy of the database, made while other processes keep writing to it.

Copying the file alone could miss the write-ahead log or copy half of a change; SQLite's
`VACUUM INTO` does neither.
"""

import os
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from sqlalchemy import Engine

from studio.db.session import NO_TRANSACTION, explain_errors, open_engine
from studio.errors import UnavailableError

_UNFINISHED_PREFIX = ".new-"

MAX_COPIES = 3
"""How many backups from before upgrades to keep; older ones are deleted."""


def create(engine: Engine, to: Path) -> None:
    """Write a complete, verified and synced copy, or none at all.

    Raises:
        DiskFullError: there is no disk space for it.
        UnavailableError: the database is busy, or damaged.

    """
    unfinished = to.with_name(f"{_UNFINISHED_PREFIX}{uuid4().hex}")
    try:
        with (
            explain_errors(),
            engine.execution_options(begin=NO_TRANSACTION).connect() as connection,
        ):
            connection.exec_driver_sql("VACUUM INTO ?", (str(unfinished),))
        verify(unfinished)
        _fsync(unfinished)
        unfinished.replace(to)
        _fsync(to.parent)
    finally:
        for leftover in to.parent.glob(f"{unfinished.name}*"):
            leftover.unlink()


def verify(database: Path) -> None:
    """Check the integrity of a database.

    Raises:
        UnavailableError: the database is damaged.

    """
    engine = open_engine(database)
    try:
        with explain_errors(), engine.connect() as connection:
            result = connection.exec_driver_sql("PRAGMA quick_check").scalar_one()
    finally:
        engine.dispose()
    if result != "ok":
        raise UnavailableError(
            "The database is damaged.", hint="Restore a backup: studio restore FILE --force."
        )


def create_before_upgrade(engine: Engine, folder: Path, revision: str) -> Path:
    """Back up the database before an upgrade, named by time and revision; delete old backups.

    Raises:
        DiskFullError: there is no disk space for it.
        UnavailableError: the database is busy, or damaged.

    """
    folder.mkdir(mode=0o700, exist_ok=True)
    for leftover in folder.glob(f"{_UNFINISHED_PREFIX}*"):
        leftover.unlink()
    backup_path = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}-{revision}.db"
    create(engine, backup_path)
    for old in sorted(folder.glob("*Z-*.db"))[:-MAX_COPIES]:
        old.unlink()
    return backup_path


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
