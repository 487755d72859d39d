"""Runs side by side."""

import json

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.protocols.events import Sampled
from studio.services.runs import attempts
from tests.support.factories import make_finished_run, make_running, metrics_event
from tests.support.page_reader import Node, parse_page

pytestmark = pytest.mark.smoke


def shown(client: TestClient, query: str) -> Node:
    return parse_page(client.get(f"/compare{query}").text)


def two(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for precision, loss in (("bf16", 1.5), ("fp32", 1.25)):
            run = make_running(db, precision, precision=precision)
            answer = Sampled(
                stage="after", step=9, position=0, prompt="Q?", reference="R", answer=precision
            )
            attempts.apply_events(db, run, [metrics_event(9, eval_loss=loss), answer], 10)


def table(page: Node, label: str) -> list[list[str]]:
    bodies = page.one("div", **{"aria-label": label}).all("tbody")
    rows = [row for body in bodies for row in body.all("tr")]
    return [[cell.text for cell in row.parts if isinstance(cell, Node)] for row in rows]


def test_single_run_page_offers_other_runs(client: TestClient, engine: Engine) -> None:
    two(engine)

    boxes = shown(client, "?runs=1").all("input", type="checkbox", name="run")
    assert [(box.attributes["value"], "checked" in box.attributes) for box in boxes] == [
        ("2", False),
        ("1", True),
    ]


def test_page_without_runs_shows_empty_state(client: TestClient) -> None:
    assert shown(client, "").one(class_="empty").one("h2").text == "Nothing to compare yet"


def test_selected_runs_are_put_in_url(client: TestClient, engine: Engine) -> None:
    two(engine)

    answer = client.get("/compare?run=2&run=1&run=2", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/compare?runs=2,1")


def test_only_differing_settings_are_shown(client: TestClient, engine: Engine) -> None:
    two(engine)

    rows = table(shown(client, "?runs=1,2"), "Settings of the runs")
    assert rows == [["precision", "bf16", "fp32"]]


def test_all_settings_can_be_shown(client: TestClient, engine: Engine) -> None:
    two(engine)

    rows = table(shown(client, "?runs=1,2&all=1"), "Settings of the runs")
    assert [row for row in rows if row[0] in {"Optimisation", "seed"}] == [
        ["Optimisation"],
        ["seed", "42 default", "42 default"],
    ]


def test_metrics_are_compared_with_baseline(client: TestClient, engine: Engine) -> None:
    two(engine)

    rows = table(shown(client, "?runs=1,2&base=2"), "Final metrics of the runs")
    assert rows[2:] == [
        [
            "Validation loss",
            "1.5 +0.25 1.5 vs. 1.25 at step 9 repeats needed to tell from noise",
            "1.25",
        ]
    ]


def test_run_keeps_colour_in_any_order(client: TestClient, engine: Engine) -> None:
    two(engine)
    orders = [
        json.loads(shown(client, query).one(**{"data-unit": "step"}).attributes["data-lines"])
        for query in ("?runs=1,2", "?runs=2,1")
    ]

    hues = [{line["id"]: line["hue"] for line in lines} for lines in orders]
    assert hues == [{1: 1, 2: 2}, {1: 1, 2: 2}]


def test_runs_with_same_colour_have_different_dashes(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for _ in range(9):
            make_finished_run(db)

    page = shown(client, "?runs=9,1").one(**{"data-unit": "step"})
    lines = {line["id"]: line for line in json.loads(page.attributes["data-lines"])}
    assert [(lines[number]["hue"], lines[number]["dash"]) for number in (1, 9)] == [(1, 0), (1, 1)]


def test_removing_run_keeps_rest_of_view(client: TestClient, engine: Engine) -> None:
    two(engine)
    with unit_of_work(engine) as db:
        make_finished_run(db)

    page = shown(client, "?runs=1,2,3&base=2&x=tokens")
    link = page.one("a", **{"aria-label": "Remove run 1, bf16"})
    assert link.attributes["href"] == "/compare?runs=2,3&base=2&x=tokens"


def test_curves_are_requested_along_chosen_axis(client: TestClient, engine: Engine) -> None:
    two(engine)

    page = shown(client, "?runs=1,2&x=tokens").one(**{"data-unit": "tokens"})
    address = page.attributes["data-curves"]
    assert (address, client.get(address + "&keys=eval_loss").json()["x"]) == (
        "/api/v1/compare/curves?runs=1,2&x=tokens&group=",
        [900],
    )


def test_comparing_missing_run_returns_404(client: TestClient, engine: Engine) -> None:
    two(engine)

    assert client.get("/compare?runs=1,99").status_code == 404


def test_seed_and_name_are_ignored_unless_noise_is_requested(
    client: TestClient, engine: Engine
) -> None:
    with unit_of_work(engine) as db:
        for seed in (1, 2):
            make_finished_run(db, f"try {seed}", optimisation={"seed": seed})
    said = [
        parse_page(client.get(f"/compare?runs=1,2{more}").text).text for more in ("", "&noise=1")
    ]

    assert ["Not compared: name, optimisation.seed." in one for one in said] == [True, False]
    assert ["None: these runs use the same recipe." in one for one in said] == [True, False]


def test_page_without_repeats_warns_that_noise_is_unknown(
    client: TestClient, engine: Engine
) -> None:
    two(engine)

    assert "No repeats, so noise is unknown" in shown(client, "?runs=1,2").text


def test_groups_are_listed_with_run_count(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for seed in (1, 2):
            make_finished_run(db, optimisation={"seed": seed})

    listed = shown(client, "?runs=1,2&group=seed").one("ul", **{"aria-label": "Groups shown"})
    assert listed.text == "first try n = 2"


def test_brush_in_url_hides_runs(client: TestClient, engine: Engine) -> None:
    two(engine)

    page = shown(client, "?runs=1,2&brush=eval_loss:1..1.3")
    hidden = {
        one.attributes["data-of"]
        for one in page.all()
        if "hidden" in one.attributes and "data-of" in one.attributes
    }
    assert hidden == {"1"}


def test_charts_name_axes_units_and_better_direction(client: TestClient, engine: Engine) -> None:
    two(engine)

    plot = shown(client, "?runs=1,2&x=tokens").one("div", **{"data-key": "eval_loss"})
    assert {key: plot.attributes[f"data-{key}"] for key in ("x", "y", "better")} == {
        "x": "Tokens",
        "y": "Validation loss (nats/token)",
        "better": "lower",
    }


def test_any_metric_can_be_x_axis(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for _ in range(2):
            run = make_running(db)
            attempts.apply_events(db, run, [metrics_event(1, loss=2.0, grad_norm=7.0)], 1)

    found = client.get("/api/v1/compare/curves?runs=1,2&keys=loss&x=grad_norm").json()
    assert (found["x"], found["curves"]["loss"]["1"]["mean"]) == ([7.0], [2.0])


def test_group_is_drawn_as_one_line(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for seed in (1, 2):
            make_finished_run(db, optimisation={"seed": seed})

    found = client.get("/api/v1/compare/curves?runs=1,2&keys=loss&group=seed").json()
    assert [(line["id"], line["n"]) for line in found["lines"]] == [(1, 2)]
    assert list(found["curves"]["loss"]) == ["1"]


def test_broken_step_is_explained(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        attempts.apply_events(db, make_running(db), [metrics_event(3, loss=float("nan"))], 1)

    assert "Training loss: nan" in parse_page(client.get("/runs/1/broken?step=3").text).text


def test_comparison_opens_with_verdict_and_offers_seeds(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for precision in ("bf16", "fp32"):
            run = make_finished_run(db, precision=precision)
            run.metrics = {**run.metrics, "eval_loss": 1.5, "train_seconds": 60.0}
            run.claimed_at = None
    page = shown(client, "?runs=1,2&x=tokens")

    assert page.one("h2", id="verdict-title").text == "No visible difference."
    form = page.one("form", action="/compare/seeds")
    assert form.one("button").text == "Add two seeds to be sure (about 4 min)"
    posted = {
        "run": [one.attributes["value"] for one in form.all("input", name="run")],
        "query": form.one("input", name="query").attributes["value"],
    }
    answer = client.post("/compare/seeds", data=posted, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        "/compare?runs=1,2,3,4,5,6&x=tokens&group=seed",
    )
