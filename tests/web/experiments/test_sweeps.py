"""Sweeps: the form, what it foresees, the page, and all of it by REST."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import Session

from studio.db.session import unit_of_work
from studio.db.states import RunStatus, SweepStatus
from studio.db.tables import Run
from studio.hardware import detect
from studio.protocols.events import Event, Finished, Started
from studio.services import experiments
from studio.services.runs import attempts, runs, states
from studio.services.sweeps import sweeps
from tests.support.factories import make_recipe, metrics_event
from tests.support.page_reader import Node, field_error, form_fields, parse_page

RATE, RANK = "optimisation.learning_rate", "adapter.r"
NEW: dict[str, Any] = {
    "experiment_id": 1,
    "space": {RATE: {"values": [1e-4, 1e-3]}, RANK: {"values": [4, 8]}},
}


@pytest.fixture(autouse=True)
def experiment(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        experiments.create(db, "tone", make_recipe())


def fields(client: TestClient, **changes: str) -> dict[str, list[str] | str]:
    form = parse_page(client.get("/sweeps/new?from=experiment:1").text).one(id="form")
    pairs = form_fields(form)
    told: dict[str, list[str] | str] = {
        name: [one for key, one in pairs if key == name] for name, _value in pairs
    }
    return told | {name.replace("__", "."): value for name, value in changes.items()}


def end(db: Session, run: Run, loss: float) -> None:
    about = {"device_name": detect().device_name, "train_rows": 40, "train_tokens": 400}
    lengths = {"longest_example": 12, "longest_answer": 4}
    events: list[Event] = [
        Started(total_steps=10, resolved=about | lengths),
        *(metrics_event(step, eval_loss=loss) for step in range(1, 11)),
        Finished(metrics={"eval_loss": loss, "train_seconds": 10.0}),
    ]
    states.move(db, run, RunStatus.STARTING)
    attempts.apply_events(db, run, events, 1)


@pytest.fixture
def swept(client: TestClient, engine: Engine) -> Node:
    """Carry a grid of four runs out, and look at its page."""
    client.post("/api/v1/sweeps", json=NEW).raise_for_status()
    for loss in (3.0, 1.0, 2.0, 4.0):
        with unit_of_work(engine) as db:
            sweeps.advance(db, 1)
            end(db, sweeps.list_runs(db, 1)[-1], loss)
    with unit_of_work(engine) as db:
        sweeps.advance(db, 1)
    return parse_page(client.get("/sweeps/1").text)


def test_form_creates_sweep(client: TestClient, engine: Engine) -> None:
    data = fields(client, space__optimisation__learning_rate="1e-4, 1e-3")
    data["space.precision"] = ["bf16", "fp32"]
    answer = client.post("/sweeps/new", data=data)

    with unit_of_work(engine) as db:
        made = sweeps.get(db, 1)
    assert answer.url.path == "/sweeps/1"
    assert (made.count, made.strategy, set(made.space)) == (4, "grid", {"precision", RATE})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"space__adapter__r": "4, x"}, "space-adapter-r"),
        ({"space__adapter__r": "9..4"}, "space-adapter-r"),
        ({"space__adapter__r": "4, 8", "parallel": "none"}, "parallel"),
        ({"space__adapter__r": "4, 8", "strategy": "tpe", "count": "9"}, "count"),
    ],
)
def test_rejected_form_keeps_input_and_shows_errors(
    client: TestClient, changes: dict[str, str], field: str
) -> None:
    answer = client.post("/sweeps/new", data=fields(client, **changes))

    page = parse_page(answer.text)
    typed = dict(form_fields(page.one(id="form")))["space.adapter.r"]
    assert (answer.status_code, typed) == (422, changes["space__adapter__r"])
    assert field_error(page, field) != ""
    assert page.one(id="problems").one("a").attributes["href"] == f"#{field}"


def test_form_shows_run_count_and_estimated_time(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        end(db, runs.submit(db, experiments.get(db, 1)), 1.0)
    data = fields(client, space__adapter__r="4, 8, 16", parallel="1")

    told = parse_page(client.post("/sweeps/new/prospect", data=data).text).text
    assert "3 runs , 36 s in total, between 29 s and 45 s" in told
    assert "one at a time" in told


def test_form_lists_invalid_combinations(client: TestClient) -> None:
    data = fields(client, space__dataset="starter, moon", space__adapter__r="4, 8")

    told = parse_page(client.post("/sweeps/new/prospect", data=data).text).text
    assert "2 runs" in told
    assert "2 of 4 combinations cannot run here and are left out, such as dataset=moon r=4" in told


def test_empty_form_asks_for_values(client: TestClient) -> None:
    told = parse_page(client.post("/sweeps/new/prospect", data=fields(client)).text).text

    assert told.endswith("No setting varies yet. Give a setting several values or a range.")


def test_every_recipe_setting_can_be_swept(client: TestClient) -> None:
    form = parse_page(client.get("/sweeps/new?experiment=1").text).one(id="form")
    new = parse_page(client.get("/new?from=experiment:1").text).one(id="form")

    here = {one.attributes["name"] for one in form.all("input") if "name" in one.attributes}
    settings = {one.attributes.get("name"): one.attributes.get("data-setting") for one in new.all()}
    names = {settings[name] or name for name, _value in form_fields(new)}
    missing = {name for name in names if f"space.{name}" not in here}
    assert missing == {"method", "preset", "name", "notes", "from", "view", "paste"}


def test_adapter_kinds_are_swept_with_own_settings(client: TestClient) -> None:
    data = fields(client, space__adapter__r="4, 8")
    data["space.adapter.kind"] = ["lora", "full"]
    client.post("/sweeps/new", data=data)

    planned = client.get("/api/v1/sweeps/1").json()
    assert (planned["count"], planned["space"]["adapter.kind"]["values"]) == (3, ["lora", "full"])


def test_new_sweep_without_source_offers_experiments(client: TestClient, engine: Engine) -> None:
    link = parse_page(client.get("/sweeps").text).one("a", href="/sweeps/new")
    page = parse_page(client.get(link.attributes["href"]).text)

    assert page.one("a", href="/sweeps/new?from=experiment:1").text == "tone"
    with unit_of_work(engine) as db:
        experiments.delete(db, 1)
    assert "No experiments yet" in client.get("/sweeps/new").text
    assert "New sweep" not in client.get("/sweeps").text


@pytest.mark.parametrize("source", ["moon:1", "run:9", "experiment:x"])
def test_unknown_source_returns_404(client: TestClient, source: str) -> None:
    assert client.get(f"/sweeps/new?from={source}").status_code == 404


def test_experiment_form_opens_sweep_form_without_starting_run(
    client: TestClient, engine: Engine
) -> None:
    form = parse_page(client.get("/new").text).one(id="form")
    data = {
        name: [v for key, v in form_fields(form) if key == name] for name, _v in form_fields(form)
    }
    answer = client.post("/new/sweep", data=data | {"dataset": "starter", "base_model": "starter"})

    with unit_of_work(engine) as db:
        assert runs.count(db, runs.RunFilter()) == 0
    assert (answer.url.path, answer.url.query) == ("/sweeps/new", b"from=experiment:2")


def test_page_marks_best_run_and_offers_its_settings(swept: Node) -> None:
    table = swept.one("div", **{"aria-label": "Runs of this sweep"}).one("tbody")
    best = [row.one("th").text for row in table.all("tr", class_="pinned")]

    assert best == ["Run 2 ★ best"]
    assert swept.one("section", **{"aria-labelledby": "best-title"}).text == (
        "Best run Validation loss 1 in run 2 , with learning rate 0.0001 , LoRA rank 8 ."
        " Use these settings"
    )
    assert "4 of 4 runs ended" in swept.text


def test_page_plots_metric_against_each_setting(swept: Node) -> None:
    drawn = swept.all("svg", role="img")

    assert [one.attributes["aria-label"] for one in drawn] == [
        "Validation loss (nats/token) over Learning rate: 4 runs, from 1 to 4",
        "Validation loss (nats/token) over LoRA rank: 4 runs, from 1 to 4",
    ]
    assert [len(one.all("ellipse")) for one in drawn] == [4, 4]


def test_plot_has_its_values_for_table_and_file(swept: Node) -> None:
    plot = swept.one("div", **{"data-drawing": "adapter.r"})

    assert json.loads(plot.attributes["data-cells"] or "") == [
        ["Run", "LoRA rank", "Validation loss (nats/token)"],
        *(["#1", 4, 3.0], ["#2", 8, 1.0], ["#3", 4, 2.0], ["#4", 8, 4.0]),
    ]
    assert "data-edges" not in plot.attributes


def test_plot_over_range_is_zoomed_along_its_values(client: TestClient, engine: Engine) -> None:
    space = {RATE: {"low": 1e-4, "high": 1e-2, "log": True}}
    new = NEW | {"space": space, "strategy": "random", "count": 4}
    client.post("/api/v1/sweeps", json=new).raise_for_status()
    for loss in (3.0, 1.0):
        with unit_of_work(engine) as db:
            sweeps.advance(db, 1)
            end(db, sweeps.list_runs(db, 1)[-1], loss)

    plot = parse_page(client.get("/sweeps/1").text).one("div", **{"data-drawing": RATE})
    edges = [float(edge) for edge in json.loads(plot.attributes["data-edges"] or "")]
    assert edges == sorted(edges)
    assert (len(edges), edges[16]) == (33, 1e-3)
    assert (edges[0] < 1e-4, edges[-1] > 1e-2) == (True, True)


def test_new_sweep_reports_no_runs_yet(client: TestClient) -> None:
    client.post("/api/v1/sweeps", json=NEW).raise_for_status()

    told = parse_page(client.get("/sweeps/1").text).text
    assert "No runs are queued yet." in told
    assert "0 of 4 runs ended" in told
    assert "0 of 4" in parse_page(client.get("/sweeps").text).text


def test_sweep_list_shows_empty_state(client: TestClient) -> None:
    page = parse_page(client.get("/sweeps").text)

    assert page.one(class_="empty").one("h2").text == "No sweeps yet"


def test_page_pauses_resumes_stops_and_deletes_sweep(client: TestClient, engine: Engine) -> None:
    client.post("/api/v1/sweeps", json=NEW).raise_for_status()
    seen = []
    for verb in ("pause", "resume", "stop"):
        client.post(f"/sweeps/1/{verb}")
        with unit_of_work(engine) as db:
            seen.append(sweeps.get(db, 1).status)
    answer = client.post("/sweeps/1/delete")

    assert seen == [SweepStatus.PAUSED, SweepStatus.RUNNING, SweepStatus.STOPPED]
    assert (answer.url.path, client.get("/sweeps/1").status_code) == ("/experiments/1", 404)
    assert client.post("/sweeps/1/explode").status_code == 422


def test_api_returns_lists_and_deletes_sweep(client: TestClient, swept: Node) -> None:
    told = client.get("/api/v1/sweeps/1").json()

    assert "4 of 4" in swept.text
    assert (told["status"], told["submitted"], told["importance"]) == ("finished", 4, {})
    assert told["best"] == told["trials"][1]
    assert told["trials"][1] == {
        "number": 1,
        "run_id": 2,
        "status": "succeeded",
        "state": "done",
        "settings": {RATE: 1e-4, RANK: 8},
        "value": 1.0,
    }
    assert client.get("/api/v1/runs/2").json()["sweep_id"] == 1
    assert [one["id"] for one in client.get("/api/v1/sweeps").json()["data"]] == [1]
    assert client.delete("/api/v1/sweeps/1").status_code == 204
    assert client.get("/api/v1/sweeps/1").status_code == 404


def test_api_previews_sweep_without_creating_it(client: TestClient) -> None:
    told = client.post("/api/v1/sweeps/prospect", json=NEW | {"parallel": 3}).json()

    assert told == {
        "count": 4,
        "looked_at": 4,
        "left_out": 0,
        "refused": [],
        "at_once": 1,
        "seconds": None,
        "least_seconds": None,
        "most_seconds": None,
    }
    assert client.get("/api/v1/sweeps").json()["data"] == []


def test_api_pauses_resumes_and_stops_sweep(client: TestClient) -> None:
    client.post("/api/v1/sweeps", json=NEW).raise_for_status()

    told = [
        client.post(f"/api/v1/sweeps/1/{verb}").json()["status"]
        for verb in ("pause", "resume", "stop")
    ]
    assert told == ["paused", "running", "stopped"]
    assert client.post("/api/v1/sweeps/1/resume").status_code == 409


@pytest.mark.parametrize(
    "wrong",
    [
        {"space": {}},
        {"space": {RATE: {"low": 1, "high": 0}}},
        {"space": {RATE: {"values": []}}},
        {"space": {RATE: {"values": [1], "low": 0}}},
        {"strategy": "luck"},
        {"metric": "eval loss"},
        {"parallel": 0},
    ],
)
def test_invalid_sweep_is_rejected_by_api(client: TestClient, wrong: dict[str, Any]) -> None:
    assert client.post("/api/v1/sweeps", json=NEW | wrong).status_code == 422
