"""Pause, resume, keep, retry, hold and move: by REST and on the pages."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import Session

from studio.db.session import unit_of_work
from studio.db.states import RunStatus
from studio.db.tables import Run, Worker
from studio.protocols.events import Checkpointed, Failed, Paused
from studio.services.runs import attempts, run_commands, runs
from studio.services.workers import workers
from studio.web.i18n import formatting
from tests.support.factories import make_finished_run, make_run, make_running
from tests.support.page_reader import Node, parse_page

NEW = {"name": "first try", "recipe": {"base_model": "starter", "dataset": "starter"}}


def make_paused(db: Session) -> Run:
    run = make_running(db)
    run_commands.pause(db, run.id or 0)
    attempts.apply_events(db, run, [Checkpointed(step=3, bytes=1, seconds=0.1), Paused(step=3)], 1)
    return run


def make_failed(db: Session) -> Run:
    run = make_running(db)
    attempts.apply_events(db, run, [Checkpointed(step=3, bytes=1, seconds=0.1)], 1)
    attempts.fail(db, run, Failed(code="non_finite", message="No number."))
    return run


def buttons(client: TestClient) -> list[str]:
    """Return what may be asked of the run, before the menus of what may be done with any."""
    bar = parse_page(client.get("/runs/1").text).one(id="head").all("div", class_="bar")[0]
    menus = [button for menu in bar.all("details") for button in menu.all("button")]
    words = [button.text for button in bar.all("button")]
    return words[: len(words) - len(menus)]


def post(client: TestClient, path: str) -> tuple[int, dict[str, Any]]:
    answer = client.post(f"/api/v1/runs/{path}")
    return answer.status_code, answer.json()


@pytest.mark.parametrize(("verb", "asked"), [("pause", "pause"), ("keep", "keep")])
def test_api_pauses_or_stops_running_run(
    client: TestClient, engine: Engine, verb: str, asked: str
) -> None:
    with unit_of_work(engine) as db:
        make_running(db)

    status, run = post(client, f"1/{verb}")
    assert (status, run["status"], run["asked"]) == (200, "stopping", asked)


def test_api_resumes_paused_run(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_paused(db)

    status, run = post(client, "1/resume")
    assert (status, run["status"], run["checkpoint_step"]) == (200, "queued", 3)


def test_api_retries_failed_run(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_failed(db)

    status, run = post(client, "1/retry")
    assert (status, run["status"], run["error"]) == (200, "queued", None)


def test_api_restarts_failed_run_from_start(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_failed(db)
    answer = client.post("/api/v1/runs/1/retry", json={"from": "start"})

    run = answer.json()
    assert (answer.status_code, run["status"], run["checkpoint_step"]) == (200, "queued", None)
    told = [one["words"] for one in client.get("/api/v1/runs/1/events").json()["data"]]
    assert told[-2:] == [
        "Restarted: earlier metrics and answers were deleted.",
        "Added to the queue.",
    ]


def test_retry_from_unknown_point_is_rejected(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_failed(db)

    assert client.post("/api/v1/runs/1/retry", json={"from": "middle"}).status_code == 422


def test_resuming_finished_run_is_rejected(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db)

    status, told = post(client, "1/resume")
    assert (status, told["error"]["message"]) == (409, "Run 1 is succeeded, not paused.")


def test_new_run_has_no_attempts(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db)
    assert client.get("/api/v1/runs/1/attempts").json()["data"] == []


def test_api_can_move_hold_and_prioritise_runs(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for name in "abc":
            make_run(db, name)
    client.patch("/api/v1/runs/3", json={"place": 1}).raise_for_status()
    client.patch("/api/v1/runs/2", json={"priority": 5, "is_held": True}).raise_for_status()

    waiting = client.get("/api/v1/queue").json()["waiting"]
    assert [(run["name"], run["queue_position"], run["reason"]) for run in waiting] == [
        ("b", 1, "held by you"),
        ("c", 2, "waiting for a worker: none is running"),
        ("a", 3, "waiting for a worker: none is running"),
    ]


def test_same_idempotency_key_creates_one_run(client: TestClient) -> None:
    sent = [
        client.post("/api/v1/runs", json=NEW, headers={"Idempotency-Key": "k"}) for _ in range(2)
    ]

    assert [(answer.status_code, answer.json()["id"]) for answer in sent] == [(201, 1), (201, 1)]
    assert len(client.get("/api/v1/runs").json()["data"]) == 1


def test_idempotency_key_of_another_request_is_rejected(client: TestClient) -> None:
    client.post("/api/v1/runs", json=NEW, headers={"Idempotency-Key": "k"})
    other = client.post(
        "/api/v1/runs", json=NEW | {"name": "other"}, headers={"Idempotency-Key": "k"}
    )

    assert (other.status_code, other.json()["error"]["message"]) == (
        422,
        "This Idempotency-Key was used for another request.",
    )


def test_rejected_submission_frees_idempotency_key(client: TestClient) -> None:
    wrong = {"name": "x", "recipe": {"base_model": "nope", "dataset": "starter"}}
    refused = client.post("/api/v1/runs", json=wrong, headers={"Idempotency-Key": "k"})
    again = client.post("/api/v1/runs", json=NEW, headers={"Idempotency-Key": "k"})

    assert (refused.status_code, again.status_code) == (422, 201)


@pytest.mark.parametrize(
    ("make", "offered"),
    [
        (make_run, ["Cancel", "Go back", "Cancel the run"]),
        (
            make_running,
            ["Pause", "Stop", "Keep running", "Stop and discard", "Stop and keep"],
        ),
        (make_paused, ["Resume", "Cancel", "Go back", "Cancel the run"]),
        (make_failed, ["Resume from step 3", "Restart", "Go back", "Restart"]),
        (make_finished_run, []),
    ],
)
def test_page_offers_allowed_actions(
    client: TestClient,
    engine: Engine,
    make: Callable[[Session], Run],
    offered: list[str],
) -> None:
    with unit_of_work(engine) as db:
        make(db)

    assert buttons(client) == offered


def test_page_resumes_paused_run(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_paused(db)

    answer = client.post("/runs/1/resume")
    with unit_of_work(engine) as db:
        assert (answer.url.path, runs.get(db, 1).status) == ("/runs/1", RunStatus.QUEUED)


def test_unknown_run_action_returns_404(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db)

    assert client.post("/runs/1/explode").status_code == 404


def waiting(client: TestClient) -> list[Node]:
    return parse_page(client.get("/queue").text).one(id="queue").one("tbody").all("tr")


@pytest.mark.parametrize(
    ("path", "data", "expected"),
    [
        ("/queue/2/move", {"place": "1"}, ["b #2", "a #1"]),
        ("/queue/2/priority", {"priority": "1"}, ["b #2", "a #1"]),
        ("/queue/1/cancel", {}, ["b #2"]),
    ],
)
def test_queue_page_moves_prioritises_and_cancels_runs(
    client: TestClient, engine: Engine, path: str, data: dict[str, str], expected: list[str]
) -> None:
    with unit_of_work(engine) as db:
        make_run(db, "a")
        make_run(db, "b")
    client.post(path, data=data)

    assert [row.one("th").text for row in waiting(client)] == expected


def test_held_run_is_labelled_and_can_be_released(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db)
    client.post("/queue/1/hold", data={"held": "true"})

    row = waiting(client)[0]
    # Behind it stands for how long, once that is a second.
    assert row.all("td")[1].text.startswith("held by you")
    assert row.one("button", value="false").text == "Release"


def test_first_waiting_run_starts_now_when_slot_is_free(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        workers.heartbeat(db, Worker(name="w", pid=1, slots=1))
        make_run(db, "a")
        make_run(db, "b")

    assert [row.all("td")[2].text for row in waiting(client)] == ["now", formatting.NO_VALUE]


def test_wait_estimate_uses_duration_of_similar_run(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        workers.heartbeat(db, Worker(name="w", pid=1, slots=1))
        done = make_finished_run(db, "a")
        done.claimed_at = done.created_at.replace(hour=1, minute=0, second=0)
        done.finished_at = done.created_at.replace(hour=1, minute=10, second=0)
        for _ in range(2):
            runs.resubmit(db, done.id or 0, {})

    assert [row.all("td")[2].text for row in waiting(client)] == ["now", "in 10 min"]
