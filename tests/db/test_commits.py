"""News of commits on PostgreSQL, also of those that are not announced or while it is away."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from sqlalchemy import Engine, text
from sqlmodel import Session

from studio.db.postgres import CommitListener
from studio.db.session import read_session, unit_of_work, watch_commits, writer
from studio.db.tables import Worker
from studio.settings import Settings
from tests.support.postgres_server import Server
from tests.support.waiting import wait_until

OTHERS = "datname = current_database() AND pid <> pg_backend_pid()"


@pytest.fixture
def changes(engine: Engine) -> Iterator[CommitListener]:
    """Listen, and forget what there was before."""
    with closing(CommitListener(engine, poll_seconds=600)) as changes:
        wait_until(lambda: count_listeners(engine) == 1)
        changes.has_new_commit()
        wait_until(lambda: not changes.has_new_commit())
        yield changes


def count_listeners(engine: Engine) -> int:
    """Count the connections that wait for news, by what they did last."""
    with engine.connect() as connection:
        query = f"SELECT count(*) FROM pg_stat_activity WHERE {OTHERS} AND query LIKE '%snapshot%'"  # noqa: S608 -- nothing from outside
        return int(connection.execute(text(query)).scalar_one())


def write(engine: Engine, name: str) -> None:
    with unit_of_work(engine) as db:
        db.add(Worker(name=name, pid=1, slots=1))


def cut(engine: Engine) -> None:
    """End all other connections to the database."""
    with engine.connect() as connection:
        connection.execute(
            text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OTHERS}")  # noqa: S608 -- nothing from outside
        )


def test_commit_wakes_whoever_waits(engine: Engine, changes: CommitListener) -> None:
    write(engine, "one")
    wait_until(changes.has_new_commit)

    assert not changes.has_new_commit()


def test_reads_and_failed_writes_are_no_news(engine: Engine, changes: CommitListener) -> None:
    with read_session(engine) as db:
        db.connection().execute(text("SELECT * FROM run"))
    with unit_of_work(engine):
        pass
    with Session(writer(engine)) as db:
        db.add(Worker(name="never", pid=1, slots=1))
        db.flush()
        db.rollback()
    # A later commit is heard after all earlier ones: nothing came before it.
    heard_before = changes.has_new_commit()
    write(engine, "one")
    wait_until(changes.has_new_commit)

    assert not heard_before


def test_dropped_connection_is_replaced(engine: Engine, changes: CommitListener) -> None:
    cut(engine)
    wait_until(changes.has_new_commit)  # Something may have been missed.
    wait_until(lambda: count_listeners(engine) == 1)
    wait_until(lambda: not changes.has_new_commit())
    write(engine, "after")

    wait_until(changes.has_new_commit)


def test_unannounced_commit_is_found_by_looking(
    engine: Engine, settings: Settings, postgres: Server
) -> None:
    name = postgres.name(settings.database.get_secret_value())
    with closing(CommitListener(engine, poll_seconds=0.05)) as changes:
        wait_until(lambda: count_listeners(engine) == 1)
        wait_until(lambda: not changes.has_new_commit())
        postgres.execute("DELETE FROM model", name)

        wait_until(changes.has_new_commit)


def test_server_that_restarts_is_found_again(engine: Engine, postgres: Server) -> None:
    with watch_commits(engine) as changes:
        wait_until(lambda: count_listeners(engine) == 1)
        postgres.stop()
        postgres.start()
        wait_until(changes.has_new_commit)
        write(engine, "after")  # Connections of the pool are checked before they are used.

        wait_until(changes.has_new_commit)
