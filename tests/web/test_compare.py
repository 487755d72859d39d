"""Runs side by side."""

import json

from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.events import Sampled
from studio.services import attempts
from tests.factories import make_done, make_running, progressed
from tests.reading import Node, read


def shown(client: TestClient, query: str) -> Node:
    return read(client.get(f"/compare{query}").text)


def two(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for precision, loss in (("bf16", 1.5), ("fp32", 1.25)):
            run = make_running(db, precision, precision=precision)
            answer = Sampled(
                stage="after", step=9, position=0, prompt="Q?", reference="R", answer=precision
            )
            attempts.follow(db, run, [progressed(9, eval_loss=loss), answer], 10)


def table(page: Node, label: str) -> list[list[str]]:
    body = page.one("div", **{"aria-label": label}).one("tbody")
    return [[cell.text for cell in row.parts if isinstance(cell, Node)] for row in body.all("tr")]


def test_one_run_leads_to_a_choice_of_others(client: TestClient, engine: Engine) -> None:
    two(engine)

    boxes = shown(client, "?runs=1").all("input", type="checkbox", name="run")
    assert [(box.attributes["value"], "checked" in box.attributes) for box in boxes] == [
        ("2", False),
        ("1", True),
    ]


def test_without_runs_there_is_nothing_to_compare(client: TestClient) -> None:
    assert shown(client, "").one(class_="empty").one("h2").text == "Nothing to compare yet"


def test_ticked_runs_go_into_the_address(client: TestClient, engine: Engine) -> None:
    two(engine)

    answer = client.get("/compare?run=2&run=1&run=2", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/compare?runs=2,1")


def test_only_what_differs_is_shown(client: TestClient, engine: Engine) -> None:
    two(engine)

    rows = table(shown(client, "?runs=1,2"), "Settings of the runs")
    assert rows == [["precision", "bf16", "fp32"]]


def test_all_settings_can_be_shown(client: TestClient, engine: Engine) -> None:
    two(engine)

    rows = table(shown(client, "?runs=1,2&all=1"), "Settings of the runs")
    assert [row for row in rows if row[0] == "optimisation.seed"] == [
        ["optimisation.seed", "42", "42"]
    ]


def test_numbers_are_told_against_the_baseline(client: TestClient, engine: Engine) -> None:
    two(engine)

    rows = table(shown(client, "?runs=1,2&base=2"), "Final numbers of the runs")
    assert rows[1:] == [["Validation loss", "1.5 +0.25 worse", "1.25"]]


def test_answers_stand_side_by_side(client: TestClient, engine: Engine) -> None:
    two(engine)

    assert table(shown(client, "?runs=1,2"), "Answers of the runs") == [["Q?", "R", "bf16", "fp32"]]


def test_a_run_keeps_its_colour_wherever_it_stands(client: TestClient, engine: Engine) -> None:
    two(engine)
    orders = [
        json.loads(shown(client, query).one(**{"data-unit": "step"}).attributes["data-runs"])
        for query in ("?runs=1,2", "?runs=2,1")
    ]

    hues = [{line["id"]: line["hue"] for line in lines} for lines in orders]
    assert hues == [{1: 1, 2: 2}, {1: 1, 2: 2}]


def test_runs_of_one_colour_are_told_apart_by_their_dashes(
    client: TestClient, engine: Engine
) -> None:
    with unit_of_work(engine) as db:
        for _ in range(9):
            make_done(db)

    page = shown(client, "?runs=9,1").one(**{"data-unit": "step"})
    lines = {line["id"]: line for line in json.loads(page.attributes["data-runs"])}
    assert [(lines[number]["hue"], lines[number]["dash"]) for number in (1, 9)] == [(1, 0), (1, 1)]


def test_leaving_a_run_out_keeps_the_rest_of_the_view(client: TestClient, engine: Engine) -> None:
    two(engine)
    with unit_of_work(engine) as db:
        make_done(db)

    page = shown(client, "?runs=1,2,3&base=2&x=tokens")
    link = page.one("a", **{"aria-label": "Leave out run 1, bf16"})
    assert link.attributes["href"] == "/compare?runs=2,3&base=2&x=tokens"


def test_the_curves_are_asked_for_along_the_chosen_axis(client: TestClient, engine: Engine) -> None:
    two(engine)

    page = shown(client, "?runs=1,2&x=tokens").one(**{"data-unit": "tokens"})
    address = page.attributes["data-curves"]
    assert (address, client.get(address).json()["x"]) == (
        "/api/v1/compare?runs=1,2&keys=eval_loss&x=tokens",
        [900],
    )


def test_a_run_that_is_gone_is_told(client: TestClient, engine: Engine) -> None:
    two(engine)

    assert client.get("/compare?runs=1,99").status_code == 404
