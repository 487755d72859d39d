"""Upgrade a database to the current version, and reject one from a newer version.

The old database is backed up first, and all migrations run in one transaction: if an upgrade is
interrupted, even by a power cut, the database is either the old or the new version.

A backup is a consistent copy, made while other processes keep writing: copying the file alone could
miss the write-ahead log or copy half of a change; SQLite's `VACUUM INTO` does neither.

A database on a server begins with all tables at once, and its operator backs it up.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from studio import files, resources
from studio.db.session import NO_TRANSACTION, explain_errors, is_on_server, open_engine, writer
from studio.errors import UnavailableError

if TYPE_CHECKING:
    from alembic.config import Config

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
        files.sync(unfinished)
        unfinished.replace(to)
        files.sync(to.parent)
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


BACKUPS = "backups"
"""The folder next to the database with the backups made before upgrades."""


def upgrade(engine: Engine, to: str = "head") -> None:
    """Back up the database, then run all pending migrations or none.

    Raises:
        DiskFullError: there is no disk space for the backup or the upgrade.
        UnavailableError: a newer studio wrote this database, or it cannot be upgraded.

    """
    if not is_behind(engine, to):
        return
    backup_path = _back_up(engine)
    kept = f", and a backup is in {backup_path}" if backup_path else ""
    try:
        with explain_errors():
            _run_migrations(engine, to)
    except SQLAlchemyError as error:
        raise UnavailableError(
            f"The database could not be upgraded to this version: {error}.",
            hint=f"It is unchanged{kept}. Use the previous version.",
        ) from error


def is_behind(engine: Engine, to: str = "head") -> bool:
    """Whether the database has pending migrations.

    Raises:
        UnavailableError: a newer studio wrote this database.

    """
    version = current_version(engine)
    reject_newer_version(version)
    return version != (known_versions()[-1] if to == "head" else to)


def reject_newer_version(version: str | None) -> None:
    """Reject a version that this studio does not know.

    Raises:
        UnavailableError: a newer studio wrote this database.

    """
    if version and version not in known_versions():
        raise UnavailableError(
            f"This database was written by a newer version of the studio ({version}).",
            hint="Update the studio, or choose another STUDIO_HOME or STUDIO_DATABASE.",
        )


def downgrade(engine: Engine, to: str) -> None:
    _run_migrations(engine, to, back=True)


def current_version(engine: Engine) -> str | None:
    """Return the version of a database, or None if it is empty."""
    with explain_errors(), engine.connect() as connection:
        return _version(connection)


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    version: str | None = connection.execute(
        text("SELECT version_num FROM alembic_version")
    ).scalar()
    return version


def known_versions() -> list[str]:
    """Return the versions that this studio knows, the numbers of its migration files, in order."""
    folder = resources.migrations_dir() / "versions"
    return sorted(path.name[:4] for path in folder.glob("[0-9][0-9][0-9][0-9]_*.py"))


def _back_up(engine: Engine) -> Path | None:
    """Back up the database and return the path of the copy; None if it is empty or on a server."""
    version, database = current_version(engine), engine.url.database
    if version is None or database is None or is_on_server(engine):
        return None
    return create_before_upgrade(engine, Path(database).parent / BACKUPS, version)


def _run_migrations(engine: Engine, to: str, *, back: bool = False) -> None:
    """Run the migrations from the current version to another, in one transaction."""
    from alembic import command  # noqa: PLC0415 -- heavy import

    config = alembic_config()
    with writer(engine).begin() as connection:
        config.attributes["connection"] = connection
        if is_on_server(engine) and _version(connection) is None:
            config.attributes["baseline"] = True
            command.stamp(config, to)
        else:
            (command.downgrade if back else command.upgrade)(config, to)


def alembic_config() -> "Config":
    from alembic.config import Config  # noqa: PLC0415 -- heavy import

    config = Config()
    config.set_main_option("script_location", str(resources.migrations_dir()))
    config.set_main_option("path_separator", "os")
    return config
