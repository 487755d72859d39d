"""What runs, what waits, and who does the work."""

import os

from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.db.tables import Worker
from studio.services import runs, workers
from tests.factories import make_run, make_running
from tests.reading import Node, read


def shown(client: TestClient) -> Node:
    return read(client.get("/queue").text).one(id="queue")


def test_waiting_runs_stand_in_their_order(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db, "first")
        make_run(db, "second")

    rows = [
        row.all("td")[0].text + row.one("th").text for row in shown(client).one("tbody").all("tr")
    ]
    assert rows == ["1first #1", "2second #2"]


def test_slots_and_workers_are_told(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        workers.beat(db, Worker(name="box", pid=os.getpid(), slots=2))
        make_running(db)

    told = shown(client).one("p", class_="bar")
    assert (told.all("span")[0].text, told.one(class_="chip").text) == (
        "1 of 2 slots in use",
        "worker box, heard of just now",
    )


def test_without_a_worker_there_is_a_warning(client: TestClient) -> None:
    assert shown(client).one(role="alert").one("strong").text == (
        "No worker is heard of, so nothing will start."
    )


def test_an_empty_queue_offers_the_next_step(client: TestClient) -> None:
    empty = shown(client).one(class_="empty")

    assert (empty.one("h2").text, empty.one("a").attributes["href"]) == (
        "Nothing runs and nothing waits",
        "/new",
    )


def test_a_waiting_run_can_be_cancelled(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db)

    answer = client.post("/queue/1/cancel")
    with unit_of_work(engine) as db:
        assert (answer.url.path, runs.get(db, 1).status) == ("/queue", "cancelled")
