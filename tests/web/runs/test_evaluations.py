"""Evaluations of runs: asked for on the page and over REST, shared, compared, deleted."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import col, select
from sqlmodel import delete as remove

from studio.db.evaluations import Answer, AnswerSet, Evaluation
from studio.db.session import unit_of_work
from studio.db.states import TaskStatus
from studio.db.tasks import Task
from studio.protocols.events import Failed
from studio.services.evaluations import answer_sets, evaluations
from studio.services.evaluations.evaluations import EvaluationRequest
from studio.services.runs import runs
from studio.services.tasks import tasks
from studio.settings import Settings
from tests.support import evaluated_runs
from tests.support.factories import make_finished_run, make_running
from tests.support.page_reader import parse_page

API = "/api/v1/runs/1/evaluations"
ROWS = 20
EXPECTED = [f"Answer {number}" for number in range(ROWS)]
WRONG = ["No"] * ROWS
MOSTLY = [*EXPECTED[:-2], "No", ""]
"""What the tuned model answers: two rows wrong, one of them cut off before its first word."""


@pytest.fixture
def run(engine: Engine, settings: Settings) -> int:
    """Make a run that has saved a model."""
    return make_run(engine, settings)


def make_run(engine: Engine, settings: Settings, **changes: Any) -> int:  # noqa: ANN401 -- of a recipe
    with unit_of_work(engine) as db:
        made = make_finished_run(db, **{"adapter": {"kind": "lora"}} | changes)
        evaluated_runs.lay_out(db, settings, made)
        return made.id or 0


def evaluated(engine: Engine, settings: Settings, run_id: int, tuned: list[str]) -> int:
    with unit_of_work(engine) as db:
        made = evaluated_runs.evaluate(db, settings, run_id, WRONG, tuned, EXPECTED)
        return made.id or 0


def count_waiting(engine: Engine) -> int:
    with unit_of_work(engine) as db:
        return len(db.exec(select(Task).where(col(Task.kind) == answer_sets.KIND)).all())


def error_of(answer: Any) -> tuple[int, str, str]:  # noqa: ANN401 -- the client's response
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["message"]


def test_page_asks_and_shows_progress(client: TestClient, engine: Engine, run: int) -> None:
    empty = parse_page(client.get(f"/runs/{run}/evaluation").text)
    form = empty.one("form", action=f"/runs/{run}/evaluations")
    answer = client.post(form.attributes["action"], data={"rows": "20"})
    page = parse_page(answer.text)

    assert "Did it get better?" in empty.text
    assert answer.url.path == f"/runs/{run}/evaluation"
    assert [one.attributes["aria-label"] for one in page.all("progress")] == [
        "Progress of starter",
        "Progress of run 1",
    ]
    assert count_waiting(engine) == 2
    part = page.one("div", **{"hx-trigger": "every 1s"}).attributes["hx-get"]
    assert "Progress of run 1" in client.get(part).text


def test_verdict_metrics_and_rows_are_shown(
    client: TestClient, engine: Engine, settings: Settings, run: int
) -> None:
    evaluated(engine, settings, run, MOSTLY)
    page = parse_page(client.get(f"/runs/{run}/evaluation").text)
    metrics = {row.one("th").text: row.text for row in page.all("table")[0].all("tr")[1:]}
    first, *_ = page.all("table")[1].all("tr")[1:]

    assert page.one(id="verdict-title").text.startswith("Better: 0 % → 90 %")
    assert "90 %" in metrics["Exact match decides"]
    assert "better" in metrics["Exact match decides"]
    assert "Question 18?" in first.text  # the first of the two wrong rows
    again = first.one("a")
    asked = parse_page(client.get(again.attributes["href"]).text)
    assert (again.text, asked.one("textarea", id="chat-prompt").text) == (
        "Ask again",
        "Question 18?",
    )
    assert "cut off" in page.all("table")[1].all("tr")[2].text


def test_overview_offers_an_evaluation_then_shows_its_verdict(
    client: TestClient, engine: Engine, settings: Settings, run: int
) -> None:
    before = parse_page(client.get(f"/runs/{run}").text).one("section", class_="result")
    evaluated(engine, settings, run, MOSTLY)
    after = parse_page(client.get(f"/runs/{run}").text).one("section", class_="result")

    assert "Evaluate it to compare it with the base model on more rows." in before.text
    assert "Evaluation: Better: 0 % → 90 %" in after.text


def test_rows_are_sorted(client: TestClient, engine: Engine, settings: Settings, run: int) -> None:
    number = evaluated(engine, settings, run, MOSTLY)

    def first(sort: str) -> list[int]:
        rows = client.get(f"{API}/{number}/rows?sort={sort}&limit=2").json()
        assert rows["has_more"]
        return [row["number"] for row in rows["data"]]

    assert first("row") == [1, 2]
    assert first("worst") == [19, 20]
    assert first("gained") == [1, 2]
    assert first("lost") == [19, 20]
    assert first("surprise") == [20, 19]
    assert client.get(f"{API}/{number}/rows?sort=colour").status_code == 422


def test_rows_from_the_training_data_are_told_apart(
    client: TestClient, engine: Engine, settings: Settings, run: int
) -> None:
    """Most right answers are to rows that were trained on: the others show no difference."""
    tuned = [*EXPECTED[:12], *WRONG[12:]]
    with unit_of_work(engine) as db:
        evaluated_runs.evaluate(db, settings, run, WRONG, tuned, EXPECTED, seen=12)
    page = parse_page(client.get(f"/runs/{run}/evaluation?sort=row").text)
    (told,) = client.get(API).json()["data"]
    rows = client.get(f"{API}/{told['id']}/rows").json()["data"]

    assert told["verdict"].startswith("Better: 0 % → 60 %")
    assert told["overlap"].startswith("12 of 20 rows can also be found in the training data")
    assert told["clean_verdict"] == "No clear difference on 8 rows: 0 % and 0 % exact answers."
    assert told["clean_verdict"] in page.one("p", class_="problem").text
    assert [row["overlap"] for row in rows[11:13]] == ["exact", ""]
    assert page.text.count("in the training data") == 1 + 12


def test_verdict_of_few_rows_claims_nothing(
    client: TestClient, engine: Engine, settings: Settings, run: int
) -> None:
    evaluated(engine, settings, run, [EXPECTED[0], *WRONG[1:]])

    told = client.get(API).json()["data"][0]

    assert told["verdict"].startswith("No clear difference on 20 rows")
    decisive = next(one for one in told["metrics"] if one["decides"])
    assert decisive["comparison"]["rows_needed"] > ROWS
    assert not decisive["comparison"]["is_clear"]


def test_rest_creates_reports_and_deletes(
    client: TestClient, engine: Engine, settings: Settings, run: int
) -> None:
    made = client.post(API, json={"rows": ROWS})
    number = made.json()["id"]
    early = client.get(f"{API}/{number}/rows")
    evaluated(engine, settings, run, MOSTLY)
    told = client.get(f"{API}/{number}").json()
    gone = client.delete(f"{API}/{number}")

    assert made.status_code == 202
    assert [made.json()[side]["status"] for side in ("base", "tuned")] == ["queued", "queued"]
    assert error_of(early)[:2] == (409, "conflict")
    assert (told["base"]["status"], told["tuned"]["computed_in"]) == ("succeeded", "float32")
    assert gone.status_code == 204
    with unit_of_work(engine) as db:
        for table in (Evaluation, AnswerSet, Answer):
            assert db.exec(select(table)).all() == []


@pytest.mark.usefixtures("run")
def test_equal_evaluation_is_not_made_twice(client: TestClient, engine: Engine) -> None:
    first, second, other = (
        client.post(API, json={"rows": rows}).json()["id"] for rows in (20, 20, 30)
    )

    assert (first == second, first == other) == (True, False)
    assert count_waiting(engine) == 4


def test_base_answers_once_for_all_runs(
    client: TestClient, engine: Engine, settings: Settings, run: int
) -> None:
    evaluated(engine, settings, run, MOSTLY)
    other = make_run(engine, settings, adapter={"kind": "lora", "r": 2})
    told = client.post(f"/api/v1/runs/{other}/evaluations", json={"rows": ROWS}).json()

    assert (told["base"]["status"], told["tuned"]["status"]) == ("succeeded", "queued")


@pytest.mark.parametrize(
    "changes",
    [
        {"optimisation": {"seed": 5}},
        {"data": {"validation_share": 0.5}},
        {"data": {"max_length": 77}},
        {"data": {"chat_template": "plain"}},
        {"adapter": {"kind": "lora", "base_dtype": "bfloat16"}},
    ],
)
def test_what_changes_answers_makes_new_ones(
    client: TestClient, engine: Engine, settings: Settings, run: int, changes: dict[str, Any]
) -> None:
    evaluated(engine, settings, run, MOSTLY)
    other = make_run(engine, settings, **changes)
    told = client.post(f"/api/v1/runs/{other}/evaluations", json={"rows": ROWS}).json()

    assert told["base"]["status"] == "queued"


def test_changed_weights_of_base_make_new_answers(
    client: TestClient, engine: Engine, settings: Settings, run: int
) -> None:
    evaluated(engine, settings, run, MOSTLY)
    (settings.models / "starter" / "model.safetensors").write_bytes(b"other")

    told = client.post(API, json={"rows": ROWS}).json()

    assert told["base"]["status"] == "queued"


def test_failure_is_explained_and_tried_again(client: TestClient, engine: Engine, run: int) -> None:
    number = client.post(API, json={"rows": ROWS}).json()["id"]
    with unit_of_work(engine) as db:
        for task in tasks.list_waiting(db, Task):
            failure = Failed(code="out_of_memory", message="It did not fit.", hint="Ask less.")
            tasks.fail_work(task, failure)
    page = parse_page(client.get(f"/runs/{run}/evaluation").text)
    again = client.post(API, json={"rows": ROWS}).json()

    assert "It did not fit. Ask less." in page.text
    assert "Try again" in page.text
    assert not page.all("div", **{"hx-trigger": "every 1s"})
    assert (again["id"], again["base"]["status"]) == (number, "queued")


def fail_all(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for task in tasks.list_waiting(db, Task):
            tasks.fail_work(task, Failed(code="out_of_memory", message="It did not fit."))


def test_try_again_asks_the_same_rows(
    client: TestClient, engine: Engine, settings: Settings, run: int
) -> None:
    with unit_of_work(engine) as db:
        asked = EvaluationRequest(dataset="starter", rows=7, max_new_tokens=5)
        evaluations.create(db, settings, run, asked)
        before = [task.params for task in tasks.list_waiting(db, Task)]
    fail_all(engine)
    page = parse_page(client.get(f"/runs/{run}/evaluation").text)
    button = next(one for one in page.all("button") if one.text == "Try again")
    answer = client.post(f"/runs/{run}/evaluations", data={"again": button.attributes["value"]})

    assert answer.url.query == b"number=1"
    with unit_of_work(engine) as db:
        assert [task.params for task in tasks.list_waiting(db, Task)] == before


def test_answers_of_which_less_was_recorded_are_asked_again(
    engine: Engine, settings: Settings, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(answer_sets, "_RECORDS", 1)
        before = evaluated(engine, settings, run, MOSTLY)
    after = evaluated(engine, settings, run, MOSTLY)

    with unit_of_work(engine) as db:
        one, other = (db.get_one(Evaluation, number) for number in (before, after))
        assert {one.base_id, one.tuned_id}.isdisjoint({other.base_id, other.tuned_id})


def test_evaluation_whose_tasks_are_gone_cannot_be_tried_again(
    client: TestClient, engine: Engine, run: int
) -> None:
    number = client.post(API, json={"rows": ROWS}).json()["id"]
    with unit_of_work(engine) as db:
        db.exec(remove(Task))
    answer = client.post(f"/runs/{run}/evaluations", data={"again": number})

    assert answer.status_code == 409
    assert "too old to be tried again" in answer.text


def test_deleting_a_run_deletes_its_answers(
    client: TestClient, engine: Engine, settings: Settings, run: int
) -> None:
    client.post(API, json={"rows": ROWS})
    with unit_of_work(engine) as db:
        runs.delete(db, run, settings.runs)
    with unit_of_work(engine) as db:
        answer_sets.delete_unused(db)
    with unit_of_work(engine) as db:
        assert db.exec(select(AnswerSet)).all() == []
        told = db.exec(select(Task.status).where(Task.kind == answer_sets.KIND)).all()
        assert set(told) == {TaskStatus.CANCELLED}


@pytest.mark.usefixtures("run")
def test_result_of_a_deleted_evaluation_is_dropped(client: TestClient, engine: Engine) -> None:
    number = client.post(API, json={"rows": 1}).json()["id"]
    with unit_of_work(engine) as db:
        waiting = [task.id for task in tasks.list_waiting(db, Task)]
    client.delete(f"{API}/{number}")
    with unit_of_work(engine) as db:
        for task_id in waiting:
            answer_sets.on_task_end(db, tasks.get(db, task_id or 0), {"rows": []})
        assert db.exec(select(Answer)).all() == []


def test_run_without_model_is_refused(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_running(db)

    assert error_of(client.post(API, json={}))[:2] == (409, "conflict")
    page = parse_page(client.get("/runs/1/evaluation").text)
    assert "This run has no model yet." in page.text
    assert not page.all("form", action="/runs/1/evaluations")


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"rows": 0}, "rows"),
        ({"rows": 1001}, "rows"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"dataset": "nothing"}, "dataset"),
    ],
)
def test_bad_request_is_refused_by_field(
    client: TestClient, body: dict[str, Any], field: str
) -> None:
    answer = client.post(API, json=body)

    assert (answer.status_code, answer.json()["error"]["param"]) == (422, field)
    assert client.get(API).json()["data"] == []


def test_another_dataset_can_be_asked(client: TestClient, run: int) -> None:
    told = client.post(API, json={"dataset": "starter", "rows": 5}).json()
    page = parse_page(client.get(f"/runs/{run}/evaluation").text)

    assert (told["is_held_out"], told["dataset"]) == (False, "starter, version 1")
    assert page.one("select", name="dataset").all("option")[1].text == "starter"


@pytest.mark.usefixtures("run")
def test_other_runs_evaluations_are_not_found(client: TestClient) -> None:
    number = client.post(API, json={}).json()["id"]

    for address in (
        f"/api/v1/runs/2/evaluations/{number}",
        f"{API}/999",
        "/runs/1/evaluation?number=99",
    ):
        assert client.get(address).status_code == 404
