"""Trackers on the page of a run, over REST and as CSV."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.protocols.run_dir import RunDir
from studio.services.runs import attempts
from studio.services.trackers import trackers
from studio.settings import Settings
from studio.trackers.contract import TrackerState
from studio.trackers.table import TRACKERS
from tests.support.factories import make_finished_run, metrics_event
from tests.support.page_reader import parse_page

API = "/api/v1/runs/1/trackers"


@pytest.fixture(autouse=True)
def run(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_finished_run(db)
        values = {"eval_loss": float("nan"), "grad_norm": float("inf")}
        attempts.apply_events(db, run, [metrics_event(10, **values)], 1100)


def test_run_is_sent_from_its_page(client: TestClient) -> None:
    assert "Not sent anywhere." in parse_page(client.get("/runs/1/files").text).text
    sent = client.post("/runs/1/trackers", data={"tracker": "csv"}, follow_redirects=False)

    assert sent.headers["location"] == "/runs/1/files#trackers"
    assert "CSV files ○ waiting" in parse_page(client.get("/runs/1/files").text).text


def test_list_is_refreshed_while_something_is_sent(client: TestClient) -> None:
    client.post("/runs/1/trackers", data={"tracker": "csv"})

    part = client.get("/runs/1/parts/trackers", headers={"HX-Request": "true"}).text
    assert 'hx-get="/runs/1/parts/trackers"' in part


def test_what_was_sent_and_where_is_shown(client: TestClient, settings: Settings) -> None:
    client.post("/runs/1/trackers", data={"tracker": "csv"})
    folder = RunDir(settings.runs / "1").trackers
    folder.mkdir(parents=True)
    state = TrackerState(step=10, is_closed=True, place="/data/run-1", command="open /data/run-1")
    state.save(folder, "csv")

    page = parse_page(client.get("/runs/1/files").text)
    assert "✓ complete 10 open /data/run-1" in page.text
    assert page.one("button", commandfor="untrack-csv", command="show-modal").text == "Remove"
    (one,) = client.get(API).json()["data"]
    assert (one["progress"], one["step"], one["place"]) == ("sent", 10, "/data/run-1")


def test_failure_is_explained_and_can_be_tried_again(client: TestClient, engine: Engine) -> None:
    client.post("/runs/1/trackers", data={"tracker": "csv"})
    with unit_of_work(engine) as db:
        row = trackers.get(db, 1, "csv")
        row.failures, row.error, row.hint = 99, "The disk is full.", "Delete old runs."

    text = parse_page(client.get("/runs/1/files").text).text
    assert "given up" in text
    assert "The disk is full. Delete old runs." in text
    assert "Try again" in text
    client.post("/runs/1/trackers/csv/retry")
    with unit_of_work(engine) as db:
        assert trackers.get(db, 1, "csv").failures == 0


def test_sending_can_be_stopped(client: TestClient) -> None:
    client.post("/runs/1/trackers", data={"tracker": "csv"})
    client.post("/runs/1/trackers/csv/delete")

    assert client.get(API).json()["data"] == []


def test_run_is_sent_over_rest(client: TestClient) -> None:
    new = {"tracker": "csv", "project": "pets", "name": "a", "tags": ["x"]}
    sent = client.post(API, json=new)

    assert sent.status_code == 202
    assert (sent.json()["key"], sent.json()["project"]) == ("csv", "pets")
    assert sent.json()["progress"] == "waiting"
    assert client.post(f"{API}/csv/retry").status_code == 200
    assert client.delete(f"{API}/csv").status_code == 204
    assert client.delete(f"{API}/csv").status_code == 404


def test_tracker_that_is_not_installed_is_refused(client: TestClient) -> None:
    if TRACKERS["trackio"].is_installed:
        pytest.skip("trackio is installed here")
    refused = client.post(API, json={"tracker": "trackio"})

    assert refused.status_code == 503
    assert "pip install" in refused.json()["error"]["hint"]


def test_metrics_can_be_downloaded_as_csv(client: TestClient) -> None:
    made = client.get("/api/v1/runs/1/metrics.csv")
    head, *lines = made.text.splitlines()

    assert made.headers["content-type"].startswith("text/csv")
    assert head == "step,epoch,tokens,seconds,eval_loss,grad_norm,loss"
    assert lines[0] == "1,0.1,100,0.5,,,2.9"
    assert lines[-1] == "10,1.0,1000,5.0,nan,inf,2.0"
