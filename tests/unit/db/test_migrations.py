"""Migrations: forward, back, and equal to the tables."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, inspect, text

from studio.db import migrate
from studio.db.session import open_engine, sqlite_driver, unit_of_work
from studio.db.tables import Run
from studio.errors import UnavailableError
from studio.settings import Settings
from tests.support.factories import add_starter_data, make_finished_run


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Engine]:
    engine = open_engine(tmp_path / "test.db")
    yield engine
    engine.dispose()


def test_migrated_schema_matches_models(empty: Engine) -> None:
    migrate.upgrade(empty)
    with empty.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Run.metadata) == []


def test_filled_database_downgrades_to_base_and_upgrades_again(
    empty: Engine, tmp_path: Path
) -> None:
    migrate.upgrade(empty)
    with unit_of_work(empty) as db:
        add_starter_data(db, Settings(home=tmp_path / "home"))
        make_finished_run(db)
    down = [None, *migrate.known_versions()[:-1]][::-1]
    for version in down:
        migrate.downgrade(empty, version or "base")
    assert inspect(empty).get_table_names() == ["alembic_version"]

    migrate.upgrade(empty)
    assert migrate.current_version(empty) == migrate.known_versions()[-1]


def test_upgrading_twice_changes_nothing(empty: Engine, tmp_path: Path) -> None:
    migrate.upgrade(empty)
    with unit_of_work(empty) as db:
        add_starter_data(db, Settings(home=tmp_path / "home"))
        made = make_finished_run(db).name
    migrate.upgrade(empty)

    with empty.connect() as connection:
        assert connection.execute(text("SELECT name FROM run")).scalar_one() == made


def test_latest_backups_before_upgrade_are_kept(empty: Engine, tmp_path: Path) -> None:
    migrate.upgrade(empty)
    with unit_of_work(empty) as db:
        add_starter_data(db, Settings(home=tmp_path / "home"))
    before = migrate.known_versions()[-2]
    for _ in range(migrate.MAX_COPIES + 1):
        (tmp_path / "backups").mkdir(exist_ok=True)
        (tmp_path / "backups" / ".new-cut-off").touch()
        migrate.downgrade(empty, before)
        migrate.upgrade(empty)
    kept = sorted((tmp_path / "backups").iterdir())
    copy = open_engine(kept[-1])

    assert [path.name.endswith(f"Z-{before}.db") for path in kept] == [True] * migrate.MAX_COPIES
    assert migrate.current_version(copy) == before
    with copy.connect() as connection:
        assert connection.execute(text("SELECT name FROM dataset")).scalar_one() == "starter"
    copy.dispose()


def test_upgrading_new_database_makes_no_backup(empty: Engine, tmp_path: Path) -> None:
    migrate.upgrade(empty)

    assert not (tmp_path / "backups").exists()


def test_newer_database_version_is_rejected_with_message(empty: Engine) -> None:
    migrate.upgrade(empty)
    with empty.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(UnavailableError) as refused:
        migrate.upgrade(empty)

    assert refused.value.message == (
        "This database was written by a newer version of the studio (9999)."
    )


def test_sqlite_pragmas_make_commits_durable(empty: Engine) -> None:
    with empty.connect() as connection:
        pragmas = [
            connection.execute(text(f"PRAGMA {name}")).scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        ]

    assert pragmas == ["wal", 2, 1, 30000]


def test_sqlite_version_has_wal_reset_fix() -> None:
    assert sqlite_driver().sqlite_version_info >= (3, 51, 3)
