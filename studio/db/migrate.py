"""Bring a database to the present version, or say that it is from a newer one.

The version before is copied away first, and all steps are one transaction: whatever cuts an
upgrade off, even a power cut, the database is the old one or the new one.
"""

from pathlib import Path

from sqlalchemy import Engine, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from studio import resources
from studio.db import snapshot
from studio.db.session import in_words
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
    kept = _keep(engine)
    try:
        with in_words():
            _walk(engine, to)
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
    now = current(engine)
    require_known(now)
    return now != (versions()[-1] if to == "head" else to)


def require_known(version: str | None) -> None:
    """Refuse a version that this studio has not heard of.

    Raises:
        UnavailableError: it is a newer one.

    """
    if version and version not in versions():
        raise UnavailableError(
            f"This database was written by a newer version of the studio ({version}).",
            hint="Update the studio, or choose another folder with STUDIO_HOME.",
        )


def downgrade(engine: Engine, to: str) -> None:
    _walk(engine, to, back=True)


def current(engine: Engine) -> str | None:
    """Return the version a database is at, or None for an empty one."""
    with in_words():
        if not inspect(engine).has_table("alembic_version"):
            return None
        with engine.connect() as connection:
            version: str | None = connection.execute(
                text("SELECT version_num FROM alembic_version")
            ).scalar()
    return version


def versions() -> list[str]:
    """Return the versions this studio knows, oldest first: the numbers of its migration files."""
    folder = resources.migrations() / "versions"
    return sorted(path.name[:4] for path in folder.glob("[0-9][0-9][0-9][0-9]_*.py"))


def _keep(engine: Engine) -> Path | None:
    """Copy a database that holds something. Return where the copy is."""
    now, database = current(engine), engine.url.database
    if now is None or database is None:
        return None
    return snapshot.keep(engine, Path(database).parent / BACKUPS, now)


def _walk(engine: Engine, to: str, *, back: bool = False) -> None:
    from studio.db import alembic_runner  # noqa: PLC0415 -- heavy import

    with engine.execution_options(begin="BEGIN IMMEDIATE").begin() as connection:
        alembic_runner.walk(connection, to, back=back)
