"""What runs, what waits, and who does the work."""

import os
from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.column_types import now
from studio.db.session import unit_of_work
from studio.db.tables import Worker
from studio.db.tasks import LoadedModel
from studio.services.models import loaded_model
from studio.services.runs import runs
from studio.services.workers import workers
from studio.web.runs.run_table import MAX_LIVE, MAX_QUEUED
from tests.support.factories import make_run, make_running
from tests.support.page_reader import Node, parse_page

pytestmark = pytest.mark.smoke


def shown(client: TestClient) -> Node:
    return parse_page(client.get("/queue").text).one(id="queue")


def test_waiting_runs_are_listed_in_order(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db, "first")
        make_run(db, "second")

    rows = [
        row.all("td")[0].text + row.one("th").text for row in shown(client).one("tbody").all("tr")
    ]
    assert rows == ["1first #1", "2second #2"]


def test_slots_and_workers_are_shown(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        workers.heartbeat(db, Worker(name="box", pid=os.getpid(), slots=2))
        make_running(db)

    told = shown(client).one("p", class_="bar")
    assert (told.all("span")[0].text, told.one(class_="chip").text) == (
        "1 of 2 slots in use",
        "box, last seen just now",
    )


def load(engine: Engine, **told: Any) -> None:  # noqa: ANN401 -- any column
    with unit_of_work(engine) as db:
        workers.heartbeat(db, Worker(name="box", pid=os.getpid(), slots=2))
        loaded_model.save_status(
            db, LoadedModel(worker="box", model="ft:starter:local:tone:7", **told)
        )


def test_loaded_model_occupies_slot(client: TestClient, engine: Engine) -> None:
    load(engine, leaves_at=now() + timedelta(seconds=250))
    with unit_of_work(engine) as db:
        make_running(db)

    told, queue = shown(client), client.get("/api/v1/queue").json()
    card = told.one(id="loaded")
    assert told.one("p", class_="bar").all("span")[0].text == "2 of 2 slots in use"
    assert card.one("h3").text == "ft:starter:local:tone:7"
    assert "Unloads in 4 min" in card.text
    assert (queue["used"], queue["loaded"]["model"]) == (2, "ft:starter:local:tone:7")
    assert 0 < queue["loaded"]["leaves_in_seconds"] <= 250


def test_busy_loaded_model_shows_no_unload_time(client: TestClient, engine: Engine) -> None:
    load(engine)

    assert "Unloads" not in shown(client).one(id="loaded").text
    assert client.get("/api/v1/queue").json()["loaded"]["leaves_in_seconds"] is None


def test_loaded_model_of_dead_worker_is_hidden(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        loaded_model.save_status(db, LoadedModel(worker="gone", model="starter"))

    told = client.get("/api/v1/queue").json()
    assert (told["loaded"], told["used"]) == (None, 0)


@pytest.mark.parametrize(
    ("verb", "address"), [("POST", "/queue/loaded/stop"), ("DELETE", "/api/v1/queue/loaded")]
)
def test_loaded_model_can_be_unloaded(
    client: TestClient, engine: Engine, verb: str, address: str
) -> None:
    load(engine)

    answer = client.request(verb, address)

    card = shown(client).one(id="loaded")
    assert answer.status_code == 200
    assert (card.all("button"), "Unloads after its current answer." in card.text) == ([], True)
    with unit_of_work(engine) as db:
        assert loaded_model.is_unload_requested(db, "box")


def test_unloading_without_loaded_model_returns_409(client: TestClient) -> None:
    assert client.delete("/api/v1/queue/loaded").status_code == 409


def test_missing_worker_shows_warning(client: TestClient) -> None:
    assert shown(client).one(role="alert").one("strong").text == (
        "No worker is running, so nothing will start."
    )


def test_empty_queue_links_to_new_experiment(client: TestClient) -> None:
    empty = shown(client).one(class_="empty")

    assert (empty.one("h2").text, empty.one("a").attributes["href"]) == (
        "Nothing is running or queued",
        "/new",
    )


def test_waiting_run_can_be_cancelled(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db)

    answer = client.post("/queue/1/cancel")
    with unit_of_work(engine) as db:
        assert (answer.url.path, runs.get(db, 1).status) == ("/queue", "cancelled")


def make_many(engine: Engine, *, live: int, waiting: int) -> None:
    with unit_of_work(engine) as db:
        for number in range(live):
            make_running(db, f"live {number}")
        for number in range(waiting):
            make_run(db, f"waits {number}")


def test_many_live_and_queued_runs_are_cut_with_links_to_the_others(
    client: TestClient, engine: Engine
) -> None:
    make_many(engine, live=MAX_LIVE + 3, waiting=MAX_QUEUED + 2)

    queue, home = shown(client), parse_page(client.get("/").text).one(id="running")
    links = {link.text: link.attributes["href"] for part in (queue, home) for link in part.all("a")}
    totals = [
        parse_page(client.get(links[name]).text).one(id="found").all("span", role="status")[0].text
        for name in ("3 more running", "2 more queued")
    ]
    assert (len(queue.all("article")), len(home.all("article"))) == (MAX_LIVE, MAX_LIVE)
    assert len(queue.one("tbody").all("tr")) == MAX_QUEUED
    assert totals == [f"{MAX_LIVE + 3} runs", f"{MAX_QUEUED + 2} runs"]


def test_all_live_and_queued_runs_are_in_the_api(client: TestClient, engine: Engine) -> None:
    make_many(engine, live=MAX_LIVE + 1, waiting=3)

    queue = client.get("/api/v1/queue").json()
    assert (len(queue["live"]), queue["used"]) == (MAX_LIVE + 1, MAX_LIVE + 1)
    assert [run["queue_position"] for run in queue["waiting"]] == [1, 2, 3]
    assert {run["queue_position"] for run in queue["live"]} == {None}


def test_few_runs_have_no_link_to_others(client: TestClient, engine: Engine) -> None:
    make_many(engine, live=1, waiting=1)

    assert " more " not in shown(client).text
