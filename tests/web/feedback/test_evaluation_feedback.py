"""The buttons of an evaluation's rows: keep the expected answer, leave a row out of training."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.db.tables import Run
from studio.services.datasets import dataset_builds, datasets
from studio.services.datasets.pending_datasets import Upload
from studio.settings import Settings
from tests.support import evaluated_runs
from tests.support.factories import make_finished_run
from tests.support.page_reader import Node, parse_page

HERE = "/runs/1/evaluations/1"
PARTIAL = {"HX-Request-Type": "partial"}
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Question 0?"},
    {"role": "assistant", "content": "What?"},
    {"role": "user", "content": "Question 0, again?"},
]
ROWS: list[dict[str, Any]] = [
    {"messages": [*CONVERSATION, {"role": "assistant", "content": "Answer 0."}]},
    *(
        {
            "messages": [
                {"role": "user", "content": f"Question {number}?"},
                {"role": "assistant", "content": f"Answer {number}."},
            ]
        }
        for number in (1, 2, 3, 1)
    ),
]
EXPECTED = [row["messages"][-1]["content"] for row in ROWS]
TUNED = ["Wrong.", "No.", "Answer 2.", "", "Answer 1."]


def evaluate(
    engine: Engine, settings: Settings, rows: Sequence[dict[str, Any]] = ROWS, name: str = "pets"
) -> None:
    """Evaluate a run on rows of a dataset of its own."""
    path = settings.datasets / ".arrived"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with unit_of_work(engine) as db:
        dataset_builds.import_file(
            db, settings.datasets, Upload(path=path, filename=f"{name}.jsonl", name=name)
        )
    with unit_of_work(engine) as db:
        run = make_finished_run(db, dataset=name, adapter={"kind": "lora"})
        evaluated_runs.lay_out(db, settings, run)
        evaluated_runs.evaluate(db, settings, 1, ["No."] * len(TUNED), TUNED, EXPECTED)


@pytest.fixture
def evaluated(engine: Engine, settings: Settings, client: TestClient) -> TestClient:
    evaluate(engine, settings)
    return client


def say(client: TestClient, position: int, choice: str, **more: str) -> Any:  # noqa: ANN401 -- the client's response
    data = {"position": str(position), "choice": choice, **more}
    return client.post(f"{HERE}/feedback", data=data, headers=PARTIAL)


def kept(client: TestClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/api/v1/feedback").json()["data"]
    return found


def buttons(node: Node) -> dict[str, str]:
    return {one.text: one.attributes.get("aria-pressed", "") for one in node.all("button")}


def test_expected_answer_is_added_with_the_whole_conversation(evaluated: TestClient) -> None:
    answer = say(evaluated, 0, "conversation")

    assert buttons(parse_page(answer.text))["Add to data"] == "true"
    (said,) = kept(evaluated)
    turns = said["row"]["messages"]
    assert [turn["content"] for turn in turns[:-1]] == [one["content"] for one in CONVERSATION]
    assert (turns[-1]["content"], turns[2]["weight"]) == ("Answer 0.", 0)
    assert (said["said_in"], said["run_id"], said["evaluation_id"], said["position"]) == (
        *("evaluation", 1),
        *(1, 0),
    )


def test_expected_answer_is_preferred_over_that_of_the_run(evaluated: TestClient) -> None:
    say(evaluated, 1, "preference")

    (said,) = kept(evaluated)
    assert said["kind"] == "preference"
    assert said["row"]["chosen"][0]["content"] == "Answer 1."
    assert said["row"]["rejected"][0]["content"] == "No."
    assert (said["model"], said["other_model"], said["temperature"]) == ("", "run 1", 0)


def test_what_was_said_shows_on_the_page_and_is_taken_back(evaluated: TestClient) -> None:
    say(evaluated, 1, "preference")
    page = parse_page(evaluated.get("/runs/1/evaluation?sort=row").text)

    row = page.one(id="row-1")
    assert buttons(row) == {
        "Add to data": "false",
        "Prefer the expected answer": "true",
    }
    assert len(page.all("form", action=f"{HERE}/leave-out")) == len(ROWS)
    # The run answered as expected, or not at all: there is nothing to prefer.
    assert "Prefer the expected answer" not in buttons(page.one(id="row-2"))
    assert "Prefer the expected answer" not in buttons(page.one(id="row-3"))

    undone = say(evaluated, 1, "preference", undo="true")

    assert buttons(parse_page(undone.text))["Prefer the expected answer"] == "false"
    assert kept(evaluated) == []


def test_without_script_the_page_comes_back_at_its_row(evaluated: TestClient) -> None:
    back = evaluated.post(
        f"{HERE}/feedback",
        data={"position": "1", "choice": "conversation"},
        headers={"Referer": "http://testserver/runs/1/evaluation?sort=row"},
        follow_redirects=False,
    )

    assert (back.status_code, back.headers["location"]) == (
        303,
        "/runs/1/evaluation?sort=row#row-1",
    )


@pytest.mark.parametrize(("position", "status"), [(99, 404), (2000, 422), (-1, 422)])
def test_row_that_does_not_exist_is_refused(
    evaluated: TestClient, position: int, status: int
) -> None:
    assert say(evaluated, position, "conversation").status_code == status


def test_empty_answer_is_not_kept_as_the_worse_one(evaluated: TestClient) -> None:
    assert say(evaluated, 3, "preference").status_code == 422
    assert kept(evaluated) == []


def test_row_and_its_copies_are_left_out_and_brought_back(
    evaluated: TestClient, engine: Engine
) -> None:
    gone = evaluated.post(f"{HERE}/leave-out", data={"position": "1"})

    notice = parse_page(gone.text).one(id="left-out")
    assert "2 rows of pets are left out. New runs use version 2" in notice.text
    rows = evaluated.get("/api/v1/datasets/2/rows").json()["data"]
    assert [row["messages"][-1]["content"] for row in rows] == ["Answer 0.", *EXPECTED[2:4]]

    again = evaluated.post(f"{HERE}/leave-out", data={"position": "1"})
    assert again.status_code == 409
    assert "asks this" in again.text

    evaluated.post(notice.one("form").attributes["action"])
    with unit_of_work(engine) as db:
        assert datasets.get(db, 2).version == 1


def test_rows_of_a_built_in_dataset_cannot_be_left_out(
    engine: Engine, settings: Settings, client: TestClient
) -> None:
    with unit_of_work(engine) as db:
        run = make_finished_run(db, adapter={"kind": "lora"})
        evaluated_runs.lay_out(db, settings, run)
        evaluated_runs.evaluate(db, settings, 1, ["No."], ["No."], ["Yes."])

    assert "Leave out" not in client.get("/runs/1/evaluation").text
    assert client.post(f"{HERE}/leave-out", data={"position": "0"}).status_code == 404


def test_rows_outlive_their_dataset_if_they_are_one_message(
    evaluated: TestClient, engine: Engine
) -> None:
    with unit_of_work(engine) as db:
        run = db.get_one(Run, 1)
        run.dataset_version_id = None
    assert evaluated.delete("/api/v1/datasets/2").status_code == 204

    assert say(evaluated, 1, "conversation").status_code == 200
    assert kept(evaluated)[0]["row"]["messages"][0]["content"] == "Question 1?"


def test_feedback_outlives_its_evaluation_and_its_run(evaluated: TestClient) -> None:
    say(evaluated, 1, "conversation")

    evaluated.delete("/api/v1/runs/1/evaluations/1").raise_for_status()
    without_evaluation = kept(evaluated)[0]
    evaluated.delete("/api/v1/runs/1").raise_for_status()
    without_run = kept(evaluated)[0]

    assert (without_evaluation["run_id"], without_evaluation["evaluation_id"]) == (1, None)
    assert without_run["run_id"] is None
    assert "said in an evaluation" in evaluated.get("/feedback").text


def test_texts_are_not_kept_as_conversations(
    engine: Engine, settings: Settings, client: TestClient
) -> None:
    evaluate(engine, settings, [{"text": f"Some text {number}."} for number in range(5)], "texts")

    refused = say(client, 1, "conversation")

    assert refused.status_code == 422
    assert kept(client) == []


def test_reference_of_a_task_is_added_after_its_prompt(
    evaluated: TestClient, settings: Settings
) -> None:
    tasks = [
        {"messages": row["messages"][:-1], "item": {"reference_answer": expected}}
        for row, expected in zip(ROWS, EXPECTED, strict=True)
    ]
    path = settings.datasets / "2" / "1" / "train.jsonl"
    path.write_text("".join(json.dumps(task) + "\n" for task in tasks), encoding="utf-8")
    say(evaluated, 0, "conversation")

    turns = kept(evaluated)[0]["row"]["messages"]
    expected = [*(turn["content"] for turn in CONVERSATION), "Answer 0."]
    assert [turn["content"] for turn in turns] == expected
    evaluated.post(f"{HERE}/leave-out", data={"position": "1"}).raise_for_status()
    assert len(evaluated.get("/api/v1/datasets/2/rows").json()["data"]) == 3
