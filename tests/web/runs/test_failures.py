"""How a failure is told: on the run's page and over REST."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.db.tables import Attempt
from studio.failure_codes import FAILURE_CODES
from studio.protocols.events import Event, Failed, PhaseChanged
from studio.protocols.run_dir import RunDir
from studio.services.runs import attempts
from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.settings import Settings
from tests.support.factories import make_running, metrics_event
from tests.support.page_reader import Node, parse_page

BATCH = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}


@pytest.fixture
def panel(client: TestClient, engine: Engine, settings: Settings) -> Node:
    """Return what is shown of a run that saved when its memory ended."""
    fail(engine, settings)
    return parse_page(client.get("/runs/1").text).one(id="failure")


def fail(engine: Engine, settings: Settings, code: str = "out_of_memory") -> None:
    folder = RunDir(settings.runs / "1")
    folder.root.mkdir(parents=True)
    folder.log.write_text("almost\nbang ```\n", encoding="utf-8")
    with unit_of_work(engine) as db:
        run = make_running(db, optimisation=BATCH)
        run.attempt = 1
        db.add(Attempt(run_id=1, number=1, worker="w"))
        told: list[Event] = [
            metrics_event(4, loss=2.0),
            PhaseChanged(name="saving"),
            Failed(code=code, message="Bang."),
        ]
        attempts.apply_events(db, run, told, 1)
        attempts.close_exited(db, run, ProcessExit(exit_code=1))


def test_failure_panel_shows_cause_first(panel: Node) -> None:
    told = [part.text for part in panel.parts if isinstance(part, Node)]

    assert told[:2] == ["Out of memory", "Bang."]


def test_failure_panel_shows_phase_step_and_attempt(panel: Node) -> None:
    facts = {row.one("dt").text: row.one("dd").text for row in panel.one("dl").all("div")}

    assert facts == {
        "Failed while": "saving",
        "After step": "4",
        "Exit status": "exit code 1",
        "Attempt": "1",
        "Code": "out_of_memory",
    }


def test_failure_code_links_to_its_explanation(client: TestClient, panel: Node) -> None:
    address = panel.one("dl").one("a").attributes["href"]
    page, _, row = address.partition("#")

    shown = parse_page(client.get(page).text).one("article", id=row)
    assert FAILURE_CODES["out_of_memory"].meaning in shown.text


def test_bug_report_contains_all_details(panel: Node) -> None:
    report = panel.one("textarea").text

    for part in ("## Bang.", "- Code: `out_of_memory`", "attempt 1", "- Phase: saving, step 4"):
        assert part in report
    assert "per_device_train_batch_size: 8" in report
    assert "````text almost bang ``` ````" in report


def test_api_returns_full_failure(client: TestClient, engine: Engine, settings: Settings) -> None:
    fail(engine, settings)

    assert client.get("/api/v1/runs/1").json()["error"] == {
        "code": "out_of_memory",
        "message": "Bang.",
        "hint": "",
        "phase": "saving",
        "step": 4,
        "attempt": 1,
        "exit_code": 1,
        "signal": "",
        "log": ["almost", "bang ```"],
        "repairs": [
            {
                "title": "with batch size 4 and 2 accumulation steps",
                "change": {
                    "optimisation": {
                        "per_device_train_batch_size": 4,
                        "gradient_accumulation_steps": 2,
                    }
                },
            }
        ],
    }


def test_suggested_repair_can_be_submitted_by_api(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    fail(engine, settings)
    (repair,) = client.get("/api/v1/runs/1").json()["error"]["repairs"]

    answer = client.post("/api/v1/runs/1/again", json={"overrides": repair["change"]})
    made = answer.json()
    assert (answer.status_code, made["id"], made["status"], made["error"]) == (
        201,
        2,
        "queued",
        None,
    )
    assert made["recipe"]["optimisation"]["gradient_accumulation_steps"] == 2


@pytest.mark.parametrize(
    ("overrides", "param"),
    [
        ({"optimisation": {"learning_rate": "fast"}}, "optimisation.learning_rate"),
        ({"base_model": "startr"}, "base_model"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_invalid_override_is_named_in_error(
    client: TestClient, engine: Engine, overrides: dict[str, Any], param: str
) -> None:
    with unit_of_work(engine) as db:
        make_running(db)

    answer = client.post("/api/v1/runs/1/again", json={"overrides": overrides})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, param)


def test_failed_model_can_be_replaced_on_run_page(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_running(db, base_model="owner/gone")
        attempts.fail(db, run, Failed(code="model_not_found", message="It is gone."))

    form = parse_page(client.get("/runs/1").text).one(id="failure").one("form", class_="swap")
    sent = {"base_model": form.one("option").text}
    assert client.post(form.attributes["action"], data=sent).url.path == "/runs/2"
    assert client.get("/api/v1/runs/2").json()["recipe"]["base_model"] == "starter"


def test_reduced_batch_size_is_shown(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_running(db, optimisation=BATCH, recovery={"smaller_batches": True})
        attempts.apply_events(db, run, [Failed(code="out_of_memory", message="It did not fit.")], 1)
        attempts.close_exited(db, run, ProcessExit(exit_code=1))

    page = parse_page(client.get("/runs/1").text)
    told = client.get("/api/v1/runs/1").json()
    assert (
        "Attempt 0 ran out of memory. Since then the batch size has been 4 instead of 8, with 2 "
        "gradient accumulation steps."
    ) in [note.text for note in page.all("p", class_="note")]
    assert (told["status"], told["error"]) == ("queued", None)
    assert told["recipe"]["optimisation"]["per_device_train_batch_size"] == 4
