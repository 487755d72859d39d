"""Why something waits, on its page, on the queue's, and in the API."""

from datetime import UTC, datetime, timedelta

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.db.tasks import Export
from studio.services.queue import queue
from studio.services.runs import runs
from studio.services.workers import workers
from studio.services.workers.workers import WorkerExit
from studio.settings import Settings
from tests.support.factories import connect_worker, make_finished_run, make_run
from tests.support.page_reader import parse_page


@pytest.fixture
def waiting(engine: Engine) -> list[int]:
    """Let one run be trained while two wait."""
    with unit_of_work(engine) as db:
        connect_worker(db, "plain")
        made = [make_run(db, name).id or 0 for name in ("trains", "next", "last")]
        assert queue.claim(db, "plain", 1)
    return made


def test_waiting_run_names_run_it_waits_for(client: TestClient, waiting: list[int]) -> None:
    trains, following, last = waiting
    told = client.get("/api/v1/queue").json()["waiting"]
    page = parse_page(client.get(f"/runs/{last}").text).one(id="wait").text

    assert [(run["id"], run["reason"]) for run in told] == [
        (following, f"waiting for run {trains} to end"),
        (last, f"waiting behind run {following}"),
    ]
    assert page.startswith(f"Waiting behind run {following}")
    why = client.get(f"/api/v1/runs/{following}").json()["waiting"]
    assert (why["reason"], why["starts_in_seconds"]) == (told[0]["reason"], None)
    assert client.get(f"/api/v1/runs/{trains}").json()["waiting"] is None


def test_waiting_time_is_shown(client: TestClient, engine: Engine, waiting: list[int]) -> None:
    with unit_of_work(engine) as db:
        runs.get(db, waiting[1]).created_at = datetime.now(UTC) - timedelta(minutes=9)

    shown = parse_page(client.get(f"/runs/{waiting[1]}/parts/wait").text).one(id="wait").text
    assert shown.startswith(f"Waiting for run {waiting[0]} to end, for 9 min")
    assert parse_page(client.get(f"/runs/{waiting[0]}/parts/wait").text).one(id="wait").text == ""


def test_export_waits_for_training(client: TestClient, engine: Engine, waiting: list[int]) -> None:
    with unit_of_work(engine) as db:
        run = make_finished_run(db).id or 0
        db.add(Export(run_id=run, kind="merged", dtype="bfloat16"))
    told = client.get(f"/api/v1/runs/{run}/exports/1").json()["waiting"]

    assert told["reason"] == f"waiting for run {waiting[1]} to start and end: training goes first"
    page = client.get(f"/runs/{run}/exports").text
    assert "Waiting for run" in page


def test_run_waiting_for_restarting_worker_reports_it(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    with unit_of_work(engine) as db:
        make_run(db)
    reasons = [client.get("/api/v1/queue").json()["waiting"][0]["reason"]]
    next_at = datetime.now(UTC) + timedelta(minutes=1)
    workers.write_exit(settings, WorkerExit(reason="The worker died.", next_at=next_at))
    reasons.append(client.get("/api/v1/queue").json()["waiting"][0]["reason"])

    assert reasons == [
        "waiting for a worker: none is running",
        "waiting for the worker, which is restarting",
    ]
