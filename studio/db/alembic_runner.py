"""Run migrations up or down: the code that needs Alembic, a heavy import."""

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

from studio import resources


def run_migrations(connection: Connection, to: str, *, back: bool = False) -> None:
    """Run the migrations from the current version to another, in the open transaction."""
    config = alembic_config()
    config.attributes["connection"] = connection
    (command.downgrade if back else command.upgrade)(config, to)


def alembic_config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(resources.migrations_dir()))
    config.set_main_option("path_separator", "os")
    return config
