"""Trials of graders through the REST API: the same as on the page."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.db.states import TaskStatus
from studio.protocols.grader_trials import GivenAnswer, TrialJob
from studio.services.graders import trials
from studio.settings import Settings
from studio.web.app import create_app
from tests.fakes.judge_endpoint import run_judge, said
from tests.unit.graders.test_schema import SCORE
from tests.unit.services.graders.test_trials import RIGHT, no_model

TRIALS = "/api/v1/graders/trials"
MODEL: dict[str, Any] = {"source": "model", "model": "starter", "rows": 2, "answers": 3}


def finish(engine: Engine, text: str) -> int:
    with unit_of_work(engine) as db:
        task = trials.get(db, 1)
        job = TrialJob.model_validate(task.params)
        answers = {row.number: [GivenAnswer(text=text)] * job.answers for row in job.rows}
        result = trials.grade(job.grader, job.rows, answers, "sealed", no_model)
        task.result, task.status = result.model_dump(mode="json"), TaskStatus.SUCCEEDED
        return task.id or 0


def attempt(client: TestClient, status: int = 200, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 -- fields
    body = {"grader": RIGHT, "dataset": "starter"} | fields
    answer = client.post(TRIALS, json=body)
    assert answer.status_code == status, answer.text
    told: dict[str, Any] = answer.json()
    return told


def test_expected_answers_are_graded_at_once(client: TestClient) -> None:
    told = attempt(client)

    assert (told["task"], told["status"], told["verdict"]) == (None, "succeeded", "good")
    assert told["sentence"] == "All expected answers get the full score."
    assert told["summary"] == {
        "mean": 1.0,
        "spread": None,
        "share_without_spread": None,
        "errors": 0,
        "count": 8,
    }
    first = told["rows"][0]
    (answer,) = first["answers"]
    assert first["prompt"].startswith("What is ")
    assert (answer["score"], answer["messages"], answer["parts"]) == (1.0, [], {})
    assert answer["seconds"] > 0


def test_errors_and_parts_are_told(client: TestClient) -> None:
    broken = RIGHT | {"name": "broken", "reference": "{{ item.nothing }}"}
    grader = {
        "name": "both",
        "type": "multi",
        "graders": {"right": RIGHT, "broken": broken},
        "calculate_output": "right + broken",
    }
    told = attempt(client, grader=grader, source="text", text="7.", rows=1)

    (answer,) = told["rows"][0]["answers"]
    assert (answer["text"], answer["score"], answer["parts"]["broken"]) == ("7.", None, None)
    assert answer["errors"]["invalid_variable_error"] is True
    assert answer["messages"][0].startswith("broken: item.nothing does not exist")
    assert told["verdict"] == "refused"


def test_model_answers_in_the_background(client: TestClient, engine: Engine) -> None:
    told = attempt(client, 202, **MODEL)
    assert (told["status"], told["verdict"], told["rows"]) == ("queued", None, [])
    assert attempt(client, 202, **MODEL)["task"] == told["task"]

    finish(engine, "No idea.")
    done = client.get(f"{TRIALS}/{told['task']}").json()
    assert (done["status"], done["verdict"]) == ("succeeded", "refused")
    assert [len(row["answers"]) for row in done["rows"]] == [3, 3]
    assert done["summary"]["share_without_spread"] == 1
    again = attempt(client, **MODEL, grader=RIGHT | {"operation": "ne"})
    assert again["task"] is None
    assert again["summary"]["mean"] == 1


def test_judge_outside_is_asked_once_for_equal_answers(engine: Engine, settings: Settings) -> None:
    key = "sk-nobodysees"
    with run_judge(lambda _request: said('{"result": 3}')) as made:
        listed = json.dumps([{"name": "large", "url": made.url, "model": "m", "key": key}])
        known = {"endpoints": SecretStr(listed), "allow_internal_addresses": True}
        client = TestClient(create_app(engine, settings.model_copy(update=known)))
        judge = {**SCORE, "model": "endpoint:large"}
        judge["input"] = [{"role": "user", "content": "{{ sample.output_text }}"}]
        told = attempt(client, grader=judge, source="text", text="7.")
        waiting = attempt(client, 202, grader=judge, **MODEL)

    assert told["summary"]["mean"] == 3
    assert len(made.asked) == 1
    assert key not in json.dumps(told)
    task = client.get(f"/api/v1/chores/{waiting['task']}").text
    assert key not in task
    assert made.url not in task


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"grader": {"type": "luck"}}, 422, "grader.type"),
        ({"dataset": "nothing"}, 422, "dataset"),
        ({"source": "model", "model": "gpt-4o"}, 404, "model"),
        ({"source": "luck"}, 422, "source"),
        ({"rows": 65}, 422, "rows"),
        ({"grader": SCORE | {"model": "gpt-4o"}}, 404, "grader.model"),
        ({"luck": 1}, 422, "luck"),
    ],
)
def test_wrong_trials_are_refused(
    client: TestClient, fields: dict[str, Any], status: int, param: str
) -> None:
    error = attempt(client, status, **fields)["error"]

    assert error.get("param") == param or error["errors"][0]["param"] == param


def test_unknown_trials_are_not_found(client: TestClient) -> None:
    assert client.get(f"{TRIALS}/1").status_code == 404
