"""A run's numerics on its page: signals and their meaning, alarms, and a repair one click away."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.protocols.events import AlarmRaised, Failed
from studio.recipe.dotted_keys import flatten
from studio.services.runs import attempts, runs
from tests.support.factories import make_running, metrics_event
from tests.support.page_reader import Node, parse_page

ALARM = AlarmRaised(
    code="activations_overflow",
    message="The first NaN or infinite output came from layers.1.mlp.",
    hint="Choose bfloat16.",
    step=3,
    module="layers.1.mlp",
)


SLOWER = "Run again with a learning rate of 2e-05"


def section(client: TestClient, path: str = "/runs/1/numerics") -> Node:
    return parse_page(client.get(path).text).one(id="numerics")


def repairs(client: TestClient) -> list[str]:
    panel = parse_page(client.get("/runs/1").text).one(id="failure")
    return [button.text for form in panel.all("form") for button in form.all("button")]


def test_alarm_shows_step_and_module(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        attempts.apply_events(db, make_running(db), [ALARM], 10)

    alarms = section(client).one("ul", **{"aria-label": "Alarms"}).all("li")
    assert [alarm.one("span").text for alarm in alarms] == ["Step 3, layers.1.mlp"]
    assert alarms[0].one("strong").text == ALARM.message


def test_signal_shows_value_and_meaning(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        attempts.apply_events(
            db, make_running(db), [metrics_event(1, loss=2.0, grad_underflow_share=0.25)], 10
        )

    row = section(client).one("tbody").one("tr")
    assert [row.one("th").text, row.all("td")[0].text] == ["Gradients rounded to zero", "25 %"]
    assert row.all("td")[1].text.startswith("Gradients of linear layers that are exactly zero")


def test_section_can_be_refreshed_alone(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_running(db)

    whole, alone = section(client), section(client, "/runs/1/parts/numerics")
    assert alone.text == whole.text
    assert alone.text.startswith("Numerical health Available after the first step.")


@pytest.mark.parametrize(
    ("precision", "offered"),
    [
        ("fp16", ["Run again in bfloat16 mixed", "Run again in float32", SLOWER]),
        ("bf16", ["Run again in float32", SLOWER]),
        ("fp32", [SLOWER]),
    ],
)
def test_non_finite_failure_offers_wider_precision(
    client: TestClient, engine: Engine, precision: str, offered: list[str]
) -> None:
    with unit_of_work(engine) as db:
        run = make_running(db, precision=precision)
        attempts.fail(db, run, Failed(code="non_finite", message="No number."))

    assert repairs(client) == offered


def test_repair_changes_one_setting_only(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_running(db, "tone", precision="fp32", optimisation={"seed": 7})
        attempts.fail(db, run, Failed(code="non_finite", message="No number."))

    form = parse_page(client.get("/runs/1").text).one(id="failure").one("form")
    change = {one.attributes["name"]: one.attributes["value"] for one in form.all("input")}
    answer = client.post(form.attributes["action"], data=change)

    with unit_of_work(engine) as db:
        old, new = runs.get(db, 1), runs.get(db, 2)
        told = flatten(new.recipe.model_dump()), flatten(old.recipe.model_dump())
    assert (answer.url.path, new.name) == ("/runs/2", "tone")
    assert {name: told[0][name] for name in told[0] if told[0][name] != told[1][name]} == {
        "optimisation.learning_rate": 2e-5
    }


def test_alarm_of_running_run_offers_repairs(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        attempts.apply_events(db, make_running(db, precision="fp16"), [ALARM], 10)

    assert [button.text for button in section(client).all("button")] == [
        "Run again in bfloat16 mixed",
        "Run again in float32",
        SLOWER,
    ]


def test_repair_is_offered_only_once(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_running(db, precision="fp16")
        attempts.apply_events(db, run, [ALARM], 10)
        attempts.fail(db, run, Failed(code="non_finite", message="No number."))

    assert section(client).all("button") == []


def test_unrelated_failure_offers_no_numeric_repair(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_running(db, precision="fp16")
        attempts.fail(db, run, Failed(code="orphans", message="Weights were left out."))

    assert repairs(client) == []


def test_skipped_steps_are_counted_against_all_steps(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_running(db)
        attempts.apply_events(db, run, [metrics_event(10, loss=2.0, skipped_steps=4)], 10)

    told = "6 of 10 steps updated the weights"
    assert section(client).all("p")[0].text == told
    with unit_of_work(engine) as db:
        failed = Failed(code="steps_left_out", message="Only 6 of 10 steps updated the weights.")
        attempts.apply_events(db, runs.get(db, 1), [failed], 20)
    assert told in parse_page(client.get("/runs/1").text).one("main").text
    assert SLOWER in repairs(client)
