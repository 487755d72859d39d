"""Errors of a PostgreSQL server as sentences that people can act on."""

from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from studio.db import migrate
from studio.db.session import describe_database, open_database, unit_of_work
from studio.errors import DiskFullError, InvalidError, StudioError, UnavailableError
from studio.services.operations import backups, health_checks
from studio.settings import Settings
from tests.support.postgres_server import Server

BUSY = "The database is busy; nothing was saved."
RAISED: dict[str, tuple[type[StudioError], str]] = {
    "40001": (UnavailableError, BUSY),
    "40P01": (UnavailableError, BUSY),
    "55P03": (UnavailableError, BUSY),
    "53100": (DiskFullError, "The disk is full; nothing was saved."),
    "57P01": (UnavailableError, "The database server cannot be reached: x."),
    "57P03": (UnavailableError, "The database server cannot be reached: x."),
    "25006": (UnavailableError, "The database cannot be used: x."),
    "58030": (UnavailableError, "The database cannot be used: x."),
}
"""What the server reports, by SQLSTATE."""


@pytest.mark.parametrize("state", RAISED)
def test_states_are_told_in_words(engine: Engine, state: str) -> None:
    failing = f"DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{state}'; END $$"
    expected, message = RAISED[state]
    with pytest.raises(expected) as told, unit_of_work(engine) as db:
        db.connection().execute(text(failing))

    assert told.value.message == message
    assert told.value.hint


@pytest.mark.parametrize("name", ["nowhere/none?host=/nonexistent", "@127.0.0.1:9/none"])
def test_unreachable_server_is_told_in_words(tmp_path: Path, name: str) -> None:
    url = f"postgresql://{name}" if name.startswith("@") else f"postgresql:///{name[8:]}"
    engine = open_database(Settings(home=tmp_path, database=url))
    with pytest.raises(UnavailableError) as told:
        migrate.current_version(engine)
    engine.dispose()

    assert told.value.message.startswith("The database server cannot be reached: ")
    assert "STUDIO_DATABASE" in told.value.hint


def test_missing_database_is_told_in_words(postgres: Server, tmp_path: Path) -> None:
    engine = open_database(Settings(home=tmp_path, database=postgres.url("absent")))
    with pytest.raises(UnavailableError, match='database "absent" does not exist'):
        migrate.current_version(engine)
    engine.dispose()


@pytest.mark.parametrize("url", ["mysql://a@b/c", "studio.db", "postgresql//x"])
def test_other_addresses_are_refused_in_words(tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidError, match="not the address of a PostgreSQL database"):
        open_database(Settings(home=tmp_path, database=url))


def test_password_is_never_shown() -> None:
    settings = Settings(database="postgresql://ann:hush@db.example.org/studio")

    assert describe_database(settings) == "postgresql://ann:***@db.example.org/studio"
    assert "hush" not in str(settings.environment)


def test_backups_are_left_to_the_operator(settings: Settings) -> None:
    with pytest.raises(InvalidError) as refused:
        backups.require_file(settings)

    assert "pg_dump" in refused.value.hint


def test_health_of_the_server_is_checked(settings: Settings, tmp_path: Path) -> None:
    away = Settings(home=tmp_path, database="postgresql://@127.0.0.1:9/none")

    assert next(health_checks.check_home(settings)).good
    assert next(health_checks.check_home(away)).good is False
