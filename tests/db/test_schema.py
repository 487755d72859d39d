"""The tables on PostgreSQL: all of them at once, wide enough, and of this version."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import BigInteger, Engine, Integer, inspect, text

from studio.db import migrate
from studio.db.session import open_database, unit_of_work
from studio.db.tables import Metric, Run
from studio.errors import ConflictError, UnavailableError
from studio.services.operations import home
from studio.settings import Settings
from tests.support.factories import make_run
from tests.support.postgres_server import Server

ONLY_SQLITE = {"run_by_tags"}
"""Indexes on JSON."""

ONLY_POSTGRES = {"run_in_queue"}
"""Indexes that SQLite does not need."""


def set_version(engine: Engine, version: str) -> None:
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :v"), {"v": version})


def test_every_table_and_index_is_created(engine: Engine) -> None:
    found = inspect(engine)
    tables = found.get_table_names()
    indexes = {str(index["name"]) for table in tables for index in found.get_indexes(table)}
    declared = {
        str(index.name) for table in Run.metadata.tables.values() for index in table.indexes
    }

    assert {*tables} == {*Run.metadata.tables, "alembic_version"}
    assert declared - indexes == ONLY_SQLITE
    with engine.connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), Run.metadata)
    assert {(one[0], one[1].name) for one in differences} == {
        *(("add_index", name) for name in ONLY_SQLITE),
        *(("remove_index", name) for name in ONLY_POSTGRES),
    }


def test_integers_have_64_bits_as_on_sqlite(engine: Engine) -> None:
    found = inspect(engine)
    kinds = {
        type(column["type"])
        for table in found.get_table_names()
        for column in found.get_columns(table)
        if isinstance(column["type"], Integer)
    }
    with unit_of_work(engine) as db:
        run = make_run(db)
        run.tokens = 2**40
        db.add(Metric(id=2**40, run_id=run.id or 0, key="k", step=1, epoch=0, tokens=1, seconds=0))

    assert [kind for kind in kinds if not issubclass(kind, BigInteger)] == []


def test_new_database_begins_at_the_newest_version(engine: Engine) -> None:
    assert migrate.current_version(engine) == migrate.known_versions()[-1]
    assert not migrate.is_behind(engine)


def test_newer_database_is_refused_in_words(engine: Engine, settings: Settings) -> None:
    set_version(engine, "9999")
    with pytest.raises(UnavailableError) as refused:
        home.open_home(settings)

    assert "newer version of the studio (9999)" in refused.value.message
    assert "STUDIO_DATABASE" in refused.value.hint


def test_failed_upgrade_changes_nothing_and_is_told_in_words(
    engine: Engine, settings: Settings
) -> None:
    engine.dispose()  # Another process may use the home otherwise.
    before = migrate.known_versions()[-2]
    set_version(engine, before)
    with pytest.raises(UnavailableError) as refused:
        migrate.upgrade(engine)  # The newest tables exist already.

    assert "could not be upgraded" in refused.value.message
    assert refused.value.hint == "It is unchanged. Use the previous version."
    assert migrate.current_version(engine) == before
    assert not (settings.home / migrate.BACKUPS).exists()


def test_two_processes_create_the_tables_once(postgres: Server, tmp_path: Path) -> None:
    url = postgres.url(postgres.create())
    engines = [open_database(Settings(home=tmp_path, database=url)) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(migrate.upgrade, engines))
    versions = {migrate.current_version(engine) for engine in engines}
    for engine in engines:
        engine.dispose()

    assert versions == {migrate.known_versions()[-1]}


def test_database_of_another_home_is_refused_in_words(settings: Settings, tmp_path: Path) -> None:
    other = Settings(home=tmp_path / "other", database=settings.database)
    other.home.mkdir()
    with pytest.raises(ConflictError, match="belongs to another home") as refused:
        home.open_home(other)

    assert "home_id" in refused.value.hint
    home.open_home(settings).dispose()


def test_home_that_was_moved_keeps_its_database(settings: Settings, tmp_path: Path) -> None:
    moved = Settings(home=tmp_path / "moved", database=settings.database)
    shutil.copytree(settings.home, moved.home)

    home.open_home(moved).dispose()
