"""The graders page: fields and JSON follow each other, and answers are graded on it."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.db.tables import DatasetVersion
from studio.graders.schema import parse_grader
from studio.services.graders.purposes import PURPOSES
from studio.settings import Settings
from studio.web.app import create_app
from studio.web.graders import trial_form
from studio.web.rendering import render
from tests.support.factories import make_finished_run, make_recipe
from tests.support.page_reader import Node, form_fields, parse_page
from tests.unit.graders.test_schema import MULTI, SCORE
from tests.web.graders.test_api_trials import finish
from tests.web.playground.test_playground import raw_text

FRAGMENT = {"HX-Request": "true", "HX-Request-Type": "partial"}
Fields = dict[str, str]


def open_page(client: TestClient, path: str = "/graders") -> Node:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return parse_page(answer.text)


def fields_of(page: Node) -> Fields:
    """Return what a browser would send, with line breaks as they are; it drops the first one."""
    form = page.one(id="grader-form")
    texts = {
        one.attributes["name"]: raw_text(one).removeprefix("\n") for one in form.all("textarea")
    }
    return dict(form_fields(form)) | texts


def redraw(client: TestClient, fields: Fields, **changes: str) -> Node:
    """Change fields as a person would, without JavaScript; `__` stands for the dot."""
    changed = {name.replace("__", "."): value for name, value in changes.items()}
    answer = client.post("/graders/form", data=fields | changed)
    assert answer.status_code == 200, answer.text
    return parse_page(answer.text)


def grader_of(page: Node) -> dict[str, Any]:
    grader: dict[str, Any] = json.loads(fields_of(page)["json"])
    return grader


def problems(page: Node) -> list[str]:
    form = page.one(id="grader-form")
    return [one.text for one in form.all("p") if "error" in one.attributes.get("class", "")]


def test_first_grader_suits_the_rows(client: TestClient) -> None:
    page = open_page(client)

    assert fields_of(page)["parts.0.purpose"] == "number"
    assert grader_of(page)["type"] == "python"
    assert "'reference_answer'" in grader_of(page)["source"]
    assert "reference_answer" in page.one(id="dataset-help").text
    offered = [one.attributes["value"] for one in page.one(id="known-columns").all("option")]
    assert offered == ["{{ item.reference_answer }}"]


def test_json_follows_the_fields(client: TestClient) -> None:
    fields = fields_of(open_page(client))
    page = redraw(client, fields, parts__0__purpose="contains")
    page = redraw(
        client, fields_of(page), parts__0__reference="Paris", parts__0__ignore_case="true"
    )

    assert grader_of(page) == {
        "name": "contains",
        "type": "string_check",
        "input": "{{ sample.output_text }}",
        "reference": "Paris",
        "operation": "ilike",
    }


@pytest.mark.parametrize("purpose", PURPOSES)
def test_each_purpose_has_its_fields(client: TestClient, purpose: str) -> None:
    page = redraw(client, fields_of(open_page(client)), parts__0__purpose=purpose)

    fields = fields_of(page)
    shown = {name.removeprefix("parts.0.") for name in fields if name.startswith("parts.0.")}
    checks = {one.name for one in PURPOSES[purpose].fields if one.widget == "check"}
    expected = {one.name for one in PURPOSES[purpose].fields} - checks
    assert shown - checks == expected | {"purpose", "was", "name", "weight"}


def test_fields_follow_the_json_that_was_edited(client: TestClient) -> None:
    edited = json.dumps(MULTI)
    page = redraw(client, fields_of(open_page(client)), json=edited)

    assert parse_grader(grader_of(page)) == parse_grader(MULTI)
    assert [part for part in fields_of(page) if part.endswith(".purpose")] == [
        f"parts.{place}.purpose" for place in range(len(MULTI["graders"]))
    ]


def test_json_that_cannot_be_read_is_kept_with_the_reason(client: TestClient) -> None:
    page = redraw(client, fields_of(open_page(client)), json='{"type": "string_check"')

    assert "This is not valid JSON" in problems(page)[0]
    assert fields_of(page)["json"] == '{"type": "string_check"'
    corrected = redraw(client, fields_of(page), json=json.dumps(SCORE))
    assert problems(corrected) == []
    assert parse_grader(grader_of(corrected)) == parse_grader(SCORE)


def test_wrong_field_is_named_and_the_json_stays(client: TestClient) -> None:
    fields = fields_of(open_page(client))
    page = redraw(client, fields, parts__0__tolerance="much")

    assert problems(page) == ["Tolerance: enter a number."]
    assert page.one(id="part-0-tolerance").attributes["aria-invalid"] == "true"
    assert fields_of(page)["json"] == fields["json"]
    assert problems(redraw(client, fields_of(page), parts__0__tolerance="2")) == []


def test_rewards_are_added_weighed_and_removed(client: TestClient) -> None:
    page = redraw(client, fields_of(open_page(client)), do="add", added="thinking")
    assert grader_of(page)["calculate_output"] == "(number + thinking) / 2"

    weighed = redraw(client, fields_of(page), parts__0__weight="3")
    assert grader_of(weighed)["calculate_output"] == "(3 * number + thinking) / 4"
    own = redraw(client, fields_of(weighed), formula="min(number, thinking)")
    assert grader_of(own)["calculate_output"] == "min(number, thinking)"
    assert "the weights are not used" in own.one(id="formula-help").text
    back = redraw(client, fields_of(own), formula="")
    assert grader_of(back)["calculate_output"] == "(3 * number + thinking) / 4"
    left = redraw(client, fields_of(back), do="remove:0")
    assert grader_of(left)["name"] == "thinking"


def test_reward_model_of_mine_is_chosen_by_its_run(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, "scores").recipe = make_recipe(method="reward")
        make_finished_run(db, "writer")
    page = redraw(client, fields_of(open_page(client)), parts__0__purpose="reward")
    offered = page.one(id="part-0-model").all("option")
    assert [one.attributes["value"] for one in offered if one.attributes["value"]] == ["run:1"]

    squashed = redraw(client, fields_of(page), parts__0__model="run:1")
    assert (grader_of(squashed)["model"], "range" in grader_of(squashed)) == ("run:1", False)
    limits = {"parts__0__low": "-5", "parts__0__high": "5"}
    assert grader_of(redraw(client, fields_of(squashed), **limits))["range"] == [-5.0, 5.0]


def test_lines_of_a_program_stay_as_they_are(client: TestClient) -> None:
    """Browsers send other line breaks."""
    page = redraw(client, fields_of(open_page(client)), parts__0__purpose="python")
    source = "\ndef grade(sample, item):\r\n    return 1.0\r\n"
    page = redraw(client, fields_of(page), parts__0__source=source)

    assert grader_of(page)["source"] == "\ndef grade(sample, item):\n    return 1.0\n"
    same = {name: value.replace("\n", "\r\n") for name, value in fields_of(page).items()}
    assert grader_of(redraw(client, same)) == grader_of(page)


def test_without_a_dataset_the_page_works(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        db.get_one(DatasetVersion, 1).kind = "text"
    page = open_page(client)

    assert fields_of(page)["dataset"] == ""
    assert grader_of(page)["type"] == "string_check"
    assert "Choose a dataset." in grade(client, page).text


@pytest.mark.parametrize(
    "changes", [{"parts": "x"}, {"parts.0.purpose": "luck"}, {"parts.x": "1"}, {"parts.0": "1"}]
)
def test_broken_form_is_refused(client: TestClient, changes: Fields) -> None:
    fields = {"json": "{}", "json_was": "x"}

    assert client.post("/graders/form", data=fields | changes).status_code == 422


def grade(client: TestClient, page: Node, **trial: str) -> Node:
    fields = fields_of(page) | {f"trial.{name}": value for name, value in trial.items()}
    answer = client.post("/graders/try", data=fields, headers=FRAGMENT)
    assert answer.status_code == 200, answer.text
    return parse_page(answer.text).one(id="trial")


def test_expected_answers_are_graded_at_once(client: TestClient) -> None:
    shown = grade(client, open_page(client), rows="5")

    assert "All expected answers get the full score." in shown.text
    assert len(shown.all("tbody")) == 5
    assert "sealed (" in shown.text


def test_text_is_graded_with_the_reason_of_errors(client: TestClient) -> None:
    page = redraw(client, fields_of(open_page(client)), parts__0__purpose="python")
    source = "def grade(sample, item):\n    raise ValueError(sample['output_text'])\n"
    page = redraw(client, fields_of(page), parts__0__source=source)
    shown = grade(client, page, source="text", text="my answer", rows="2")

    assert "No answer could be scored." in shown.text
    assert "ValueError: my answer" in shown.text


@pytest.mark.parametrize(
    ("trial", "message"),
    [
        ({"rows": "0"}, "Rows: enter a whole number from 1 to 64."),
        ({"rows": "x"}, "Rows: enter a whole number"),
        ({"source": "luck"}, "Choose one of expected, text, model."),
        ({"source": "model", "model": "gpt-4o"}, "The model gpt-4o does not exist."),
        ({"source": "model", "answers": "99"}, "Answers a row: enter a whole number"),
    ],
)
def test_wrong_trial_says_what_to_do(client: TestClient, trial: Fields, message: str) -> None:
    assert message in grade(client, open_page(client), **trial).text


def test_grader_that_is_wrong_is_not_tried(client: TestClient) -> None:
    page = redraw(client, fields_of(open_page(client)), parts__0__tolerance="much")

    assert "Tolerance: enter a number. Correct the grader first." in grade(client, page).text


def test_programs_that_may_not_run_are_told(engine: Engine, settings: Settings) -> None:
    off = TestClient(create_app(engine, settings.model_copy(update={"python_graders": "off"})))

    assert "turned off" in grade(off, open_page(off)).text


def test_model_answers_in_the_background_and_once(client: TestClient, engine: Engine) -> None:
    page = open_page(client)
    asked = {"source": "model", "model": "starter", "rows": "2", "answers": "2"}
    waiting = grade(client, page, **asked)
    assert "Trying a grader" in waiting.text
    assert "starter on starter" in waiting.text

    task = finish(engine, "No idea.")
    shown = parse_page(client.get(f"/graders/trials/{task}", headers=FRAGMENT).text)
    assert "the model never gets a reward" in shown.text
    assert len(shown.all("tr")) == 5
    by_itself = open_page(client, f"/graders/trials/{task}")
    assert "the model never gets a reward" in by_itself.text
    assert grader_of(by_itself) == grader_of(page)

    other = redraw(client, fields_of(page), parts__0__purpose="length")
    again = grade(client, other, **asked)
    assert "the model solves all rows already" in again.text


def test_form_of_an_experiment_names_grader_and_model(client: TestClient) -> None:
    fields = {
        "dataset": "starter",
        "base_model": "starter",
        "reward.grader": json.dumps({**SCORE, "model": "starter"}),
        "data.chat_template": "chatml",
        "trial.source": "model",
    }
    answer = client.post("/graders/try", data=fields, headers=FRAGMENT)

    assert "Trying a grader" in answer.text
    params = client.get("/api/v1/graders/trials/1").json()
    assert params["status"] == "queued"


def test_bench_can_stand_on_the_page_of_an_experiment() -> None:
    """Its model answers, so none is chosen there."""
    source = (
        '{% from "graders/_bench.html" import bench, outcome_place %}'
        '{{ bench(asked, limits, "#form") }}{{ outcome_place() }}'
    )
    html = render._environment().from_string(source).render(**trial_form.bench_context())
    form = parse_page(html).one(id="bench")

    assert form.attributes["hx-include"] == "#form"
    assert {name for name, _value in form_fields(form)} == {
        *("trial.source", "trial.text", "trial.rows", "trial.answers", "trial.max_new_tokens"),
    }
    assert dict(form_fields(form))["trial.source"] == "model"


def test_other_tasks_are_no_trials(client: TestClient) -> None:
    assert client.get("/graders/trials/7").status_code == 404
