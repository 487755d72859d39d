"""Bring a database to the present version, or say that it is from a newer one.

The version before is copied away first, and all steps are one transaction: whatever cuts an
upgrade off, even a power cut, the database is the old one or the new one.
"""

from pathlib import Path

from sqlalchemy import Engine, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from studio import resources
from studio.db import snapshot
from studio.db.session import explain_errors
from studio.errors import UnavailableError

BACKUPS = "backups"
"""The folder beside the database where the copies from before upgrades are kept."""


def upgrade(engine: Engine, to: str = "head") -> None:
    """Run the migrations that this database has not seen, all or none; keep a copy of it first.

    Raises:
        DiskFullError: there is no room for the copy, or for the upgrade.
        UnavailableError: a newer studio has written this database, or it cannot be upgraded.

    """
    if not is_behind(engine, to):
        return
    kept = _back_up(engine)
    try:
        with explain_errors():
            _run_migrations(engine, to)
    except SQLAlchemyError as error:
        raise UnavailableError(
            f"The database could not be brought to this version: {error}.",
            hint=f"It is as it was, and a copy is in {kept}. Use the version from before.",
        ) from error


def is_behind(engine: Engine, to: str = "head") -> bool:
    """Whether there are migrations that this database has not seen.

    Raises:
        UnavailableError: a newer studio has written this database.

    """
    now = current_version(engine)
    reject_newer_version(now)
    return now != (known_versions()[-1] if to == "head" else to)


def reject_newer_version(version: str | None) -> None:
    """Refuse a version that this studio has not heard of.

    Raises:
        UnavailableError: it is a newer one.

    """
    if version and version not in known_versions():
        raise UnavailableError(
            f"This database was written by a newer version of the studio ({version}).",
            hint="Update the studio, or choose another folder with STUDIO_HOME.",
        )


def downgrade(engine: Engine, to: str) -> None:
    _run_migrations(engine, to, back=True)


def current_version(engine: Engine) -> str | None:
    """Return the version a database is at, or None for an empty one."""
    with explain_errors():
        if not inspect(engine).has_table("alembic_version"):
            return None
        with engine.connect() as connection:
            version: str | None = connection.execute(
                text("SELECT version_num FROM alembic_version")
            ).scalar()
    return version


def known_versions() -> list[str]:
    """Return the versions this studio knows, oldest first: the numbers of its migration files."""
    folder = resources.migrations_dir() / "versions"
    return sorted(path.name[:4] for path in folder.glob("[0-9][0-9][0-9][0-9]_*.py"))


def _back_up(engine: Engine) -> Path | None:
    """Copy a database that holds something. Return where the copy is."""
    now, database = current_version(engine), engine.url.database
    if now is None or database is None:
        return None
    return snapshot.create_before_upgrade(engine, Path(database).parent / BACKUPS, now)


def _run_migrations(engine: Engine, to: str, *, back: bool = False) -> None:
    from studio.db import alembic_runner  # noqa: PLC0415 -- heavy import

    with engine.execution_options(begin="BEGIN IMMEDIATE").begin() as connection:
        alembic_runner.run_migrations(connection, to, back=back)
