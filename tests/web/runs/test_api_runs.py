"""Runs over REST."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.services.runs import attempts
from studio.settings import Settings
from studio.web.api.runs import event_streams
from tests.support.factories import make_finished_run, make_run, make_running, metrics_event

pytestmark = pytest.mark.smoke

NEW = {"name": "first try", "recipe": {"base_model": "starter", "dataset": "starter"}}


def refused(client: TestClient, body: Any) -> dict[str, Any]:  # noqa: ANN401 -- any JSON
    answer = client.post("/api/v1/runs", json=body)
    assert answer.status_code == 422
    error: dict[str, Any] = answer.json()["error"]
    return error


def with_recipe(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 -- any field of a recipe
    return {"name": "x", "recipe": {"base_model": "starter", "dataset": "starter"} | changes}


def test_posting_run_creates_experiment_and_queued_run(client: TestClient) -> None:
    run = client.post("/api/v1/runs", json=NEW).json()

    assert (run["id"], run["experiment_id"], run["status"], run["queue_position"]) == (
        1,
        1,
        "queued",
        1,
    )
    assert run["recipe"]["optimisation"]["learning_rate"] == 2e-4


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"optimisation": {"learning_rate": -1}}, "recipe.optimisation.learning_rate"),
        ({"optimisation": {"learning_rate": "1e-4"}}, "recipe.optimisation.learning_rate"),
        ({"optimisation": {"max_steps": True}}, "recipe.optimisation.max_steps"),
        ({"trust_remote_code": True}, "recipe.trust_remote_code"),
        ({"adapter": {"kind": "lora", "rank": 8}}, "recipe.adapter.rank"),
    ],
)
def test_invalid_field_is_named_in_error(
    client: TestClient, changes: dict[str, Any], param: str
) -> None:
    error = refused(client, with_recipe(**changes))

    assert (error["code"], error["param"]) == ("invalid", param)


def test_unknown_model_is_rejected(client: TestClient) -> None:
    error = refused(client, with_recipe(base_model="startr"))

    assert (error["param"], error["message"]) == (
        "base_model",
        "There is no model named startr.",
    )


def test_rejected_run_creates_no_experiment(client: TestClient) -> None:
    refused(client, with_recipe(base_model="startr"))

    assert client.get("/api/v1/experiments").json()["data"] == []


@pytest.mark.parametrize("body", ["NaN", '{"name": 1e400}', '{"name": "\\ud800"}', "[" * 10000])
def test_unrepresentable_json_returns_4xx(client: TestClient, body: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = client.post("/api/v1/runs", content=body, headers=headers)

    assert (answer.status_code // 100, "error" in answer.json()) == (4, True)


def test_runs_are_paginated(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for name in "abc":
            make_run(db, name)
    first = client.get("/api/v1/runs", params={"limit": 2}).json()
    rest = client.get("/api/v1/runs", params={"limit": 2, "after": first["next_after"]}).json()

    assert [run["name"] for run in first["data"] + rest["data"]] == ["c", "b", "a"]
    assert (first["has_more"], rest["has_more"], rest["next_after"]) == (True, False, None)


def test_runs_can_be_filtered_by_status(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db, "waiting")
        make_finished_run(db, "done")
    found = client.get("/api/v1/runs", params={"status": "succeeded"}).json()

    assert [run["name"] for run in found["data"]] == ["done"]


def test_running_run_reports_progress(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_running(db)
        attempts.apply_events(db, run, [metrics_event(4, loss=float("nan"))], 1)
    told = client.get("/api/v1/runs/1").json()

    assert (told["progress"], told["step"], told["metrics"]) == (0.4, 4, {"loss": "NaN"})


def test_cancelling_twice_returns_409(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db)

    assert client.post("/api/v1/runs/1/cancel").json()["status"] == "cancelled"
    answer = client.post("/api/v1/runs/1/cancel")
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        409,
        "Run 1 is already cancelled.",
    )


def test_metrics_are_aligned_and_non_finite_values_marked(
    client: TestClient, engine: Engine
) -> None:
    with unit_of_work(engine) as db:
        run = make_running(db)
        told = [metrics_event(1, loss=3.0), metrics_event(2, loss=float("inf"), eval_loss=2.5)]
        attempts.apply_events(db, run, told, 1)
    curves = client.get("/api/v1/runs/1/metrics").json()

    assert curves["x"] == [1, 2]
    assert curves["series"]["loss"]["mean"] == [3.0, None]
    assert curves["series"]["loss"]["non_finite"] == [2]
    assert curves["series"]["eval_loss"]["mean"] == [None, 2.5]


def test_events_list_state_changes(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db)
    events = client.get("/api/v1/runs/1/events").json()["data"]

    assert [event["kind"] for event in events] == ["queued", "starting", "running", "succeeded"]


def test_log_is_returned_in_whole_lines(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    with unit_of_work(engine) as db:
        make_running(db)
    folder = settings.runs / "1"
    folder.mkdir()
    (folder / "log.txt").write_bytes(b"loading\n10 %\r90 %\r100 %\n\x1b[31mred\x1b[0m\nhalf a li")
    log = client.get("/api/v1/runs/1/log").json()
    with (folder / "log.txt").open("ab") as file:
        file.write(b"ne\n")
    more = client.get("/api/v1/runs/1/log", params={"after": log["next_offset"]}).json()

    assert log["lines"] == ["loading", "100 %", "[31mred[0m"]
    assert more["lines"] == ["half a line"]


def test_artifacts_can_be_listed_and_downloaded(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db)
    folder = settings.runs / "1" / "artifacts"
    folder.mkdir(parents=True)
    (folder / "README.md").write_text("# Card")
    listed = client.get("/api/v1/runs/1/artifacts").json()["data"]
    fetched = client.get("/api/v1/runs/1/artifacts/README.md")

    assert listed == [{"name": "README.md", "bytes": 6}]
    assert (fetched.text, fetched.headers["content-disposition"]) == (
        "# Card",
        'attachment; filename="README.md"',
    )


@pytest.mark.parametrize(
    "name", ["../log.txt", "..%2flog.txt", "%2e%2e/log.txt", "/etc/passwd", "nope", "a%00b"]
)
def test_artifact_paths_outside_folder_return_404(
    client: TestClient, engine: Engine, settings: Settings, name: str
) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db)
    folder = settings.runs / "1" / "artifacts"
    folder.mkdir(parents=True)
    (settings.runs / "1" / "log.txt").write_text("secret")

    assert client.get(f"/api/v1/runs/1/artifacts/{name}").status_code == 404


def test_run_can_be_deleted(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db)

    assert client.delete("/api/v1/runs/1").status_code == 204
    assert client.get("/api/v1/runs/1").json() == {
        "error": {
            "code": "not_found",
            "message": "Run 1 does not exist.",
            "hint": "It may have been deleted.",
            "param": None,
        }
    }


def told_by_stream(client: TestClient, headers: dict[str, str] | None = None) -> list[Any]:
    """Read the stream of run 1 to its end: (event, data) pairs, without the heartbeats."""
    with client.stream("GET", "/api/v1/runs/1/stream", headers=headers or {}) as answer:
        blocks = answer.read().decode().strip().split("\n\n")
    fields = [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks]
    return [(f["event"], json.loads(f["data"]), f.get("id")) for f in fields if "event" in f]


def test_stream_sends_all_events_and_ends_with_run(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db)
    with client:
        told = told_by_stream(client)

    assert [event for event, _data, _id in told] == ["metrics", "event", "status", "end"]
    assert [row["step"] for row in told[0][1]] == list(range(1, 11))


def test_stream_resumes_after_last_event_id(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db)
    with client:
        told = told_by_stream(client, {"Last-Event-ID": "7.0"})

    assert [row["step"] for row in told[0][1]] == [8, 9, 10]
    assert told[-1][2] == "10.0.4"


def test_stream_of_unknown_run_returns_404(client: TestClient) -> None:
    assert client.get("/api/v1/runs/9/stream").status_code == 404


def test_unchanged_run_sends_no_stream_events(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_running(db)
        attempts.apply_events(db, run, [metrics_event(1, loss=3.0), metrics_event(2, loss=2.0)], 1)
        run_id = run.id or 0
    settings = Settings(home=Path("nowhere"))
    first, told = event_streams.read_news(
        engine, settings, event_streams.StreamState(run_id, event_streams.StreamPosition())
    )
    _second, again = event_streams.read_news(engine, settings, first)

    assert [event.event for event in told] == ["metrics", "event", "status"]
    assert again == []


def test_stream_reconnect_at_any_event_loses_nothing(engine: Engine, settings: Settings) -> None:
    with unit_of_work(engine) as db:
        run_id = make_finished_run(db).id or 0
    folder = settings.runs / str(run_id)
    folder.mkdir()
    (folder / "log.txt").write_text("one\ntwo\n")
    _viewer, told = event_streams.read_news(
        engine, settings, event_streams.StreamState(run_id, event_streams.StreamPosition())
    )

    def heard_in_all(cut: int) -> set[str | None]:
        place = (
            event_streams.parse_position(told[cut - 1].id or "")
            if cut
            else event_streams.StreamPosition()
        )
        _viewer, rest = event_streams.read_news(
            engine, settings, event_streams.StreamState(run_id, place)
        )
        return {event.raw_data for event in (*told[:cut], *rest)}

    whole = heard_in_all(0)
    assert [heard_in_all(cut) for cut in range(len(told) + 1)] == [whole] * (len(told) + 1)
