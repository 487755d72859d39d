"""The precision study: its form, its report, and both by REST."""

import json
import math
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.hardware import detect
from studio.protocols.events import Event, Finished, Sampled, Started
from studio.recipe.precision import PRECISIONS
from studio.services import experiments
from studio.services.runs import attempts, runs, states
from studio.services.studies import studies
from tests.support.factories import make_recipe, metrics_event
from tests.support.page_reader import Node, field_error, form_fields, parse_page

FORM = "/reports/precision/new"


@pytest.fixture
def experiment(engine: Engine) -> int:
    with unit_of_work(engine) as db:
        recipe = make_recipe(adapter={"kind": "full"})
        return experiments.create(db, "tone", recipe).id or 0


@pytest.fixture
def study(engine: Engine, experiment: int) -> int:
    """Make a study in which both modes are done with the only seed, one of them in NaN."""
    with unit_of_work(engine) as db:
        plan = studies.StudyPlan(modes=("fp32", "bf16"), seeds=1)
        made = studies.create(db, experiments.get(db, experiment), plan)
        reference, mode = studies.list_runs(db, made.id or 0)
        train(db, reference, 2.0, "yes")
        train(db, mode, math.nan, "<b>no</b>")
        return made.id or 0


def train(db: Any, run: Run, last: float, said: str) -> None:  # noqa: ANN401 -- a session
    answer = Sampled(stage="after", step=2, position=0, prompt="Q?", reference="R", answer=said)
    events: list[Event] = [
        Started(total_steps=2, resolved={}),
        metrics_event(1, loss=last, eval_loss=3.0, peak_memory_bytes=1e9),
        metrics_event(2, eval_loss=last),
        answer,
        Finished(metrics={"eval_loss": last}),
    ]
    states.move(db, run, RunStatus.STARTING)
    attempts.apply_events(db, run, events, 1)


def checked(page: Node) -> list[str]:
    boxes = page.all("input", type="checkbox", name="modes")
    return [box.attributes["value"] for box in boxes if "checked" in box.attributes]


def test_precisions_without_warnings_are_preselected(
    client: TestClient, engine: Engine, experiment: int
) -> None:
    page = parse_page(client.get(f"{FORM}?from=experiment:{experiment}").text)

    with unit_of_work(engine) as db:
        recipe = experiments.get(db, experiment).recipe
        sound = [
            mode.name
            for mode in PRECISIONS.values()
            if not studies.explain_refusal(db, recipe, mode.name) and not mode.warning(detect())
        ]
    assert checked(page) == (sound if len(sound) > 1 else ["bf16", "fp32"])


def test_unselected_precisions_show_reason(client: TestClient, experiment: int) -> None:
    page = parse_page(client.get(f"{FORM}?from=experiment:{experiment}").text)

    for choice in page.all("label", class_="choice"):
        box = choice.one("input")
        reasons = choice.all(class_="error") + choice.all(class_="caution")
        assert "checked" in box.attributes or reasons


def test_default_form_queues_every_precision_with_three_seeds(
    client: TestClient, engine: Engine, experiment: int
) -> None:
    form = parse_page(client.get(f"{FORM}?from=experiment:{experiment}").text).one(id="form")
    answer = client.post(FORM, data=fields(form))

    with unit_of_work(engine) as db:
        made = studies.get(db, 1)
        count = len(studies.list_runs(db, 1))
    assert answer.url.path == "/reports/precision/1"
    assert (made.modes[0], made.seeds, count) == ("fp32", [0, 1, 2], len(made.modes) * 3)


def fields(form: Node, **changes: str) -> dict[str, list[str] | str]:
    pairs = form_fields(form)
    return {name: [one for key, one in pairs if key == name] for name, _value in pairs} | changes


@pytest.mark.parametrize(
    ("name", "value"), [("seeds", "0"), ("seeds", "x"), ("seeds", "99"), ("max_steps", "-1")]
)
def test_rejected_form_keeps_input_and_shows_errors(
    client: TestClient, experiment: int, name: str, value: str
) -> None:
    form = parse_page(client.get(f"{FORM}?from=experiment:{experiment}").text).one(id="form")
    answer = client.post(FORM, data=fields(form, **{name: value}))

    page = parse_page(answer.text)
    assert (answer.status_code, dict(form_fields(page.one(id="form")))[name]) == (422, value)
    assert field_error(page, name) != ""


def test_study_of_run_uses_recipe_of_run(
    client: TestClient, engine: Engine, experiment: int
) -> None:
    with unit_of_work(engine) as db:
        changes = {"optimisation": {"max_steps": 9}}
        runs.submit(db, experiments.get(db, experiment), changes)
    client.post(FORM, data={"from": "run:1", "modes": ["bf16"], "seeds": "1"})

    with unit_of_work(engine) as db:
        made = studies.list_runs(db, 1)
    assert [run.recipe.optimisation.max_steps for run in made] == [9, 9]


@pytest.mark.parametrize("source", ["", "moon:1", "run:9", "experiment:x"])
def test_unknown_source_returns_404(client: TestClient, source: str) -> None:
    assert client.get(f"{FORM}?from={source}").status_code == 404


def test_report_lists_each_precision_and_keeps_nan(client: TestClient, study: int) -> None:
    page = parse_page(client.get(f"/reports/precision/{study}").text)

    rows = page.one("div", **{"aria-label": "Results by precision"}).one("tbody").all("tr")
    assert [row.one("th").text for row in rows] == ["fp32", "bf16"]
    assert page.one(class_="verdict").all("li")[0].text == (
        "bf16 has no finite validation loss (1 of 1 run); 1 step with a NaN or infinite loss."
    )


def test_sample_answers_are_escaped(client: TestClient, study: int) -> None:
    page = parse_page(client.get(f"/reports/precision/{study}").text)

    table = page.one("div", **{"aria-label": "Answers next to those of the reference"})
    assert (table.one("ins").text, table.one("del").text) == ("<b>no</b>", "yes")


def test_new_study_reports_no_results_yet(client: TestClient, experiment: int) -> None:
    client.post(FORM, data={"from": f"experiment:{experiment}", "modes": ["bf16"], "seeds": "2"})

    page = parse_page(client.get("/reports/precision/1").text)
    assert [item.text for item in page.one(class_="verdict").all("li")] == [
        "So far: bf16 has no validation loss to compare with fp32 (0 of 2 runs).",
        "Seed noise is unknown: fp32 has 0 seeds with a validation loss; at least 2 are needed.",
        "0 of 4 runs ended.",
    ]


@pytest.mark.parametrize(
    ("kind", "media", "start"),
    [
        ("md", "text/markdown", "# Precision study: tone"),
        ("csv", "text/csv", "precision,runs,failed,cancelled"),
        ("json", "application/json", '{\n "id":'),
    ],
)
def test_report_can_be_downloaded(
    client: TestClient, study: int, kind: str, media: str, start: str
) -> None:
    answer = client.get(f"/reports/precision/{study}?format={kind}")

    assert answer.headers["content-type"].startswith(media)
    assert f"precision-study-{study}.{kind}" in answer.headers["content-disposition"]
    assert answer.text.startswith(start)


def test_study_list_links_to_report(client: TestClient, study: int) -> None:
    page = parse_page(client.get("/reports/precision").text)

    assert page.one("tbody").one("a").attributes["href"] == f"/reports/precision/{study}"


def test_deleting_study_redirects_to_experiment(
    client: TestClient, study: int, experiment: int
) -> None:
    answer = client.post(f"/reports/precision/{study}/delete")

    assert answer.url.path == f"/experiments/{experiment}"
    assert client.get(f"/reports/precision/{study}").status_code == 404


def test_experiment_and_run_pages_link_to_study(client: TestClient, study: int) -> None:
    pages = [parse_page(client.get(path).text) for path in ("/experiments/1", "/runs/1")]

    links = [page.one("a", href=f"/reports/precision/{study}").text for page in pages]
    assert links == ["Study 1", "Study 1"]


def test_api_creates_study(client: TestClient, experiment: int) -> None:
    body = {"modes": ["fp32", "bf16"], "seeds": 2, "max_steps": 5}
    made = client.post(f"/api/v1/experiments/{experiment}/studies", json=body)

    listed = client.get("/api/v1/studies").json()["data"]
    report = client.get("/api/v1/studies/1").json()
    assert (made.status_code, made.json()["seeds"], listed) == (201, [0, 1], [made.json()])
    assert [run["name"] for run in report["runs"]] == [
        "tone fp32 s0",
        "tone bf16 s0",
        "tone fp32 s1",
        "tone bf16 s1",
    ]


@pytest.mark.parametrize(
    "body",
    [
        {"modes": ["bf16", "fp16"]},
        {"modes": ["fp32"]},
        {"modes": ["fp32", "fp7"]},
        {"modes": ["fp32", "bf16"], "seeds": 0},
        {"modes": ["fp32", "bf16"], "seeds": 50},
        {"modes": ["fp32", "bf16"], "steps": 5},
    ],
)
def test_invalid_study_is_rejected_by_api(
    client: TestClient, experiment: int, body: dict[str, object]
) -> None:
    assert client.post(f"/api/v1/experiments/{experiment}/studies", json=body).status_code == 422


def test_json_report_keeps_non_finite_values(client: TestClient, study: int) -> None:
    report = client.get(f"/api/v1/studies/{study}").json()

    assert [one["precision"] for one in report["findings"]] == ["fp32", "bf16"]
    assert report["curves"]["loss"]["series"]["bf16"]["non_finite"] == [1]


def test_api_deletes_study_and_keeps_runs(client: TestClient, study: int) -> None:
    answer = client.delete(f"/api/v1/studies/{study}")

    assert answer.status_code == 204
    assert [client.get(path).status_code for path in ("/api/v1/studies/1", "/api/v1/runs/1")] == [
        404,
        200,
    ]


def test_numeric_events_are_listed_by_step(client: TestClient, study: int) -> None:
    page = parse_page(client.get(f"/reports/precision/{study}").text)
    report = client.get(f"/api/v1/studies/{study}").json()

    rows = page.one("div", **{"aria-label": "Events by step"}).one("tbody").all("tr")
    assert [row.text for row in rows] == ["1 bf16 0 1 step with a NaN or infinite loss"]
    assert [(one["kind"], one["first"], one["count"]) for one in report["incidents"]] == [
        ("broken", 1, 1)
    ]
    assert (
        "| 1 | bf16 | 0 | 1 step with a NaN or infinite loss |"
        in client.get(f"/reports/precision/{study}?format=md").text
    )


def test_unknown_memory_estimate_is_reported(client: TestClient, study: int) -> None:
    report = client.get(f"/api/v1/studies/{study}").json()

    assert [one["memory_estimate"] for one in report["findings"]] == [None, None]
    assert " unknown " in client.get(f"/reports/precision/{study}?format=md").text


def test_precision_has_colour_of_its_first_run(client: TestClient, study: int) -> None:
    page = parse_page(client.get(f"/reports/precision/{study}").text)

    lines = json.loads(
        next(
            node.attributes["data-lines"]
            for node in page.all("div")
            if "data-lines" in node.attributes
        )
    )
    assert [(line["key"], line["hue"], line["dash"]) for line in lines] == [
        ("fp32", 1, 0),
        ("bf16", 2, 0),
    ]


def test_each_run_has_colour_of_its_precision(client: TestClient, study: int) -> None:
    page = parse_page(client.get(f"/reports/precision/{study}").text)

    rows = [row for row in page.all("tr") if "data-run" in row.attributes]
    cells = [row.all("td")[0] for row in rows]
    shown = {cell.text: cell.one("svg").attributes["class"] for cell in cells}
    assert shown == {"fp32": "swatch series-1", "bf16": "swatch series-2"}
