"""Bring a database to the present version, or say that it is from a newer one."""

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, inspect, text

from studio import paths
from studio.errors import UnavailableError


def upgrade(engine: Engine, to: str = "head") -> None:
    """Run the migrations that this database has not seen, each whole or not at all.

    Raises:
        UnavailableError: a newer studio has written this database.

    """
    now = current(engine)
    if now and now not in versions():
        raise UnavailableError(
            f"This database was written by a newer version of the studio ({now}).",
            hint="Update the studio, or choose another folder with STUDIO_HOME.",
        )
    if now != (versions()[-1] if to == "head" else to):
        _with_connection(engine, command.upgrade, to)


def downgrade(engine: Engine, to: str) -> None:
    _with_connection(engine, command.downgrade, to)


def current(engine: Engine) -> str | None:
    """Return the version a database is at, or None for an empty one."""
    if not inspect(engine).has_table("alembic_version"):
        return None
    with engine.connect() as connection:
        version: str | None = connection.execute(
            text("SELECT version_num FROM alembic_version")
        ).scalar()
    return version


def versions() -> list[str]:
    """Return the versions this studio knows, oldest first: the numbers of its migration files."""
    folder = paths.migrations() / "versions"
    return sorted(path.name[:4] for path in folder.glob("[0-9][0-9][0-9][0-9]_*.py"))


def configuration() -> Config:
    config = Config()
    config.set_main_option("script_location", str(paths.migrations()))
    config.set_main_option("path_separator", "os")
    return config


def _with_connection(engine: Engine, act: object, to: str) -> None:
    assert callable(act)  # noqa: S101 -- one of alembic's commands
    config = configuration()
    with engine.execution_options(begin="BEGIN IMMEDIATE").begin() as connection:
        config.attributes["connection"] = connection
        act(config, to)
