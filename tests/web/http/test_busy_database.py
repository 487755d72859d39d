"""A database that is busy or full: told in words, nothing half done, and well again by itself."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, event, text
from sqlalchemy.engine.interfaces import DBAPIConnection

from studio.db.session import open_database, unit_of_work
from studio.settings import Settings
from studio.web.app import create_app
from tests.support.factories import make_run
from tests.support.page_reader import parse_page
from tests.support.postgres_server import file_only

RUN = {"name": "asked", "recipe": {"base_model": "starter", "dataset": "starter"}}


@pytest.fixture
def hasty(engine: Engine, settings: Settings) -> Iterator[Engine]:
    """Open the same database with less patience."""
    with unit_of_work(engine) as db:
        make_run(db)
    hasty = open_database(settings, busy_seconds=0.05)
    yield hasty
    hasty.dispose()


@pytest.fixture
def client(hasty: Engine, settings: Settings) -> TestClient:
    return TestClient(create_app(hasty, settings))


@contextmanager
def held(engine: Engine) -> Iterator[None]:
    """Hold the database as a writer that does not end."""
    writer = engine.execution_options(begin="BEGIN IMMEDIATE")
    with writer.connect() as connection:
        connection.execute(text("UPDATE run SET name = name"))
        yield
        connection.rollback()


def names(client: TestClient) -> list[str]:
    return [run["name"] for run in client.get("/api/v1/runs").json()["data"]]


def test_busy_database_returns_503_with_retry_after(client: TestClient, engine: Engine) -> None:
    with held(engine):
        refused = client.post("/api/v1/runs", json=RUN)
        while_held = names(client)
    answer = client.post("/api/v1/runs", json=RUN)

    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
    assert refused.json()["error"]["message"] == "The database is busy; nothing was saved."
    assert while_held == ["first try"]
    assert (answer.status_code, names(client)) == (201, ["asked", "first try"])


def test_sweep_is_validated_before_database_lock(client: TestClient, engine: Engine) -> None:
    ranks = [{"adapter.r": {"values": values}} for values in ([4, "x"], [4, 8])]
    sweeps = [{"experiment_id": 1, "space": space} for space in ranks]
    with held(engine):
        wrong, sound = (client.post("/api/v1/sweeps", json=one) for one in sweeps)
    again = client.post("/api/v1/sweeps", json=sweeps[1], headers={"Idempotency-Key": "one"})
    twice = client.post("/api/v1/sweeps", json=sweeps[1], headers={"Idempotency-Key": "one"})

    assert (wrong.status_code, sound.status_code) == (422, 503)
    assert wrong.json()["error"]["param"] == "adapter.r"
    assert (again.status_code, twice.json()["id"]) == (201, 1)


def test_busy_database_shows_error_page(client: TestClient, engine: Engine) -> None:
    with held(engine):
        refused = client.post("/runs/1/cancel")

    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
    assert parse_page(refused.text).one(role="alert").text == (
        "The database is busy; nothing was saved. Try again in a moment."
    )


def test_pages_can_be_read_during_write(client: TestClient, engine: Engine) -> None:
    with held(engine):
        assert client.get("/").status_code == 200


@contextmanager
def full(engine: Engine) -> Iterator[None]:
    """Let the database grow no further: SQLite then fails as on a full disk."""

    def limit(connection: DBAPIConnection, _record: object) -> None:
        connection.cursor().execute("PRAGMA max_page_count = 1")

    engine.dispose()
    event.listen(engine, "connect", limit)
    yield
    event.remove(engine, "connect", limit)
    engine.dispose()


@file_only
def test_full_disk_returns_507_and_loses_nothing(client: TestClient, hasty: Engine) -> None:
    many = RUN | {"name": "x" * 200}
    with full(hasty):
        answers = [client.post("/api/v1/runs", json=many) for _ in range(60)]
        kept = len(client.get("/api/v1/runs", params={"limit": 500}).json()["data"])
    refused = answers[-1]
    taken = [answer for answer in answers if answer.status_code == 201]

    assert (refused.status_code, refused.json()["error"]["code"]) == (507, "disk_full")
    assert "Retry-After" not in refused.headers
    assert kept == len(taken) + 1
    assert client.post("/api/v1/runs", json=RUN).status_code == 201
