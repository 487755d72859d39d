"""The precision that a form or a request leaves to the studio, at every door and on the pages."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.methods import METHODS
from studio.recipe import yaml
from tests.support.factories import ROWS, connect_worker, make_recipe, make_run
from tests.support.page_reader import Node, field_value, form_fields, parse_page

LEFT_OUT = {"base_model": "starter", "dataset": "starter"}
PRESETS = [one.name for method in METHODS.values() for one in method.presets]


@pytest.fixture
def plain(engine: Engine) -> None:
    """Have a worker train on a processor without bfloat16."""
    with unit_of_work(engine) as db:
        connect_worker(db, "plain")


def sent(client: TestClient, address: str, **body: Any) -> dict[str, Any]:  # noqa: ANN401 -- any body
    answer = client.post(address, json=body)
    assert answer.is_success, answer.text
    told: dict[str, Any] = answer.json()
    return told


def form(client: TestClient, query: str = "") -> dict[str, str]:
    return dict(form_fields(parse_page(client.get(f"/new{query}").text).one(id="form")))


def drawn(client: TestClient, do: str, data: dict[str, str]) -> Node:
    return parse_page(client.post("/new/draft", data=data | {"do": do}).text).one(id="form")


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("recipe", [LEFT_OUT, LEFT_OUT | {"precision": "auto"}])
def test_run_reports_recommended_precision_and_reason(
    client: TestClient, recipe: dict[str, str]
) -> None:
    run = sent(client, "/api/v1/runs", name="a try", recipe=recipe)

    assert run["recipe"]["precision"] == "fp32"
    assert run["precision"] == {
        "name": "fp32",
        "chosen_by": "studio",
        "reason": "float32: Old CPU, 2 cores is fast in neither bfloat16 nor float16.",
    }


@pytest.mark.usefixtures("plain")
def test_named_precision_is_recorded_as_chosen_by_user(client: TestClient) -> None:
    run = sent(client, "/api/v1/runs", name="a try", recipe=LEFT_OUT | {"precision": "bf16"})

    assert run["precision"] == {"name": "bf16", "chosen_by": "user", "reason": ""}


@pytest.mark.usefixtures("plain")
def test_every_endpoint_uses_recommended_precision(client: TestClient) -> None:
    made = sent(client, "/api/v1/experiments", name="a try", recipe=LEFT_OUT)
    plan = sent(client, "/api/v1/plan", recipe=LEFT_OUT)
    sent(client, "/api/v1/estimate", recipe=LEFT_OUT)
    chore = sent(client, "/api/v1/estimate/calibration", recipe=LEFT_OUT)
    (run,) = sent(client, f"/api/v1/experiments/{made['id']}/runs")["data"]
    space = {"precision": {"values": ["auto", "bf16"]}}
    prospect = sent(client, "/api/v1/sweeps/prospect", experiment_id=made["id"], space=space)

    assert made["precision"]["chosen_by"] == run["precision"]["chosen_by"] == "studio"
    assert {made["recipe"]["precision"], run["recipe"]["precision"]} == {"fp32"}
    assert (plan["plan"]["compute"], plan["advice"]["precision"]) == ("float32", "fp32")
    assert (chore["status"], prospect["count"]) == ("queued", 2)


@pytest.mark.usefixtures("plain")
def test_openai_job_defaults_to_recommended_precision(client: TestClient) -> None:
    rows = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    client.post("/v1/files", files={"file": ("a.jsonl", rows)}, data={"purpose": "fine-tune"})
    left, named = (
        sent(client, "/v1/fine_tuning/jobs", model="starter", training_file="file-1", **extra)
        for extra in ({}, {"x_studio": {"precision": "bf16"}})
    )

    assert left["x_studio"]["precision"]["name"] == "fp32"
    assert left["x_studio"]["precision"]["chosen_by"] == "studio"
    assert named["x_studio"]["precision"] == {"name": "bf16", "chosen_by": "user", "reason": ""}


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    ("machine", "title"),
    [("plain", "float32"), ("amx", "bfloat16 mixed"), ("t4", "float16 mixed")],
)
def test_every_preset_shows_recommended_precision(
    client: TestClient, engine: Engine, preset: str, machine: str, title: str
) -> None:
    with unit_of_work(engine) as db:
        connect_worker(db, machine)
    page = parse_page(client.get(f"/new?preset={preset}").text)

    assert field_value(page.one(id="form"), "precision") == "auto"
    assert page.one(id="recommended").text == f"Recommended: {title}"


@pytest.mark.usefixtures("plain")
def test_advice_response_updates_recommended_precision(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        connect_worker(db, "t4")
    answer = client.post("/new/advice", data=form(client))

    (partial,) = parse_page(answer.text).all("hx-partial", **{"hx-target": "#recommended"})
    assert partial.text.strip() == "Recommended: float16 mixed"


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("do", ["preset:lora", "preset:full", "paste"])
def test_chosen_precision_survives_preset_and_paste(client: TestClient, do: str) -> None:
    lines = yaml.dump(make_recipe(optimisation={"seed": 7})).splitlines()
    without = "\n".join(line for line in lines if not line.startswith("precision"))
    data = form(client) | {"precision": "bf16_kahan", "adapter.kind": "full", "paste": without}

    assert field_value(drawn(client, do, data), "precision") == "bf16_kahan"


@pytest.mark.usefixtures("plain")
def test_pasted_precision_is_selected(client: TestClient) -> None:
    text = yaml.dump(make_recipe(precision="bf16"))

    assert (
        field_value(drawn(client, "paste", form(client) | {"paste": text}), "precision") == "bf16"
    )


@pytest.mark.usefixtures("plain")
def test_copied_run_keeps_resolved_precision(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db, precision="auto")
        connect_worker(db, "t4")

    assert form(client, "?from=run:1")["precision"] == "fp32"


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(("precision", "words"), [("auto", "automatically"), ("bf16", "by you")])
def test_run_page_shows_who_chose_precision(
    client: TestClient, engine: Engine, precision: str, words: str
) -> None:
    with unit_of_work(engine) as db:
        make_run(db, precision=precision)

    assert f"chosen {words}" in client.get("/runs/1/details").text


@pytest.mark.usefixtures("plain")
def test_manifest_records_who_chose_precision(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db, precision="auto")
    found = client.get("/api/v1/runs/1/manifest").json()["precision"]

    assert (found["requested"], found["chosen_by"]) == ("fp32", "studio")
    assert found["reason"].startswith("float32: Old CPU")
