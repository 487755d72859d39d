"""Solutions with rated steps, from the file to the model that checks steps."""

import io
import json

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.errors import InvalidError
from studio.services.chat.predictions import split_steps
from tests.support.factories import make_finished_run
from tests.support.page_reader import parse_page

ROWS = [
    {
        "prompt": f"What is {number} plus one?",
        "completions": [f"{number} plus one", f"is {number + 1 + number % 2}."],
        "labels": [True, number % 2 == 0],
    }
    for number in range(30)
]


@pytest.fixture
def solutions(client: TestClient) -> int:
    """Add a dataset of solutions in TRL's format."""
    content = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    files = {"file": ("solutions.jsonl", io.BytesIO(content), "application/jsonl")}
    answer = client.post("/api/v1/datasets", files=files, data={"name": "solutions"})
    assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


def test_steps_are_shown_with_their_verdicts(client: TestClient, solutions: int) -> None:
    page = parse_page(client.get(f"/datasets/{solutions}").text)
    shown = page.all("ol", class_="rated-steps")[1].all("li")
    rows = client.get(f"/api/v1/datasets/{solutions}/rows?limit=2").json()["data"]

    assert [one.attributes["class"] for one in shown] == ["better", "worse"]
    assert ["Right step" in shown[0].text, "Wrong step" in shown[1].text] == [True, True]
    assert [row["steps"] for row in rows] == [row["completions"] for row in ROWS[:2]]
    assert [row["correct"] for row in rows] == [[True, True], [True, False]]


def test_only_their_method_is_offered(client: TestClient, solutions: int) -> None:
    page = parse_page(client.get(f"/new?from=dataset:{solutions}").text)

    assert page.one("input", name="method").attributes["value"] == "prm"
    assert "Learn to check steps" in client.get(f"/datasets/{solutions}").text
    assert "Learn from answers" not in parse_page(client.get(f"/datasets/{solutions}").text).text


def test_run_page_has_a_box_to_check_a_solution(
    client: TestClient, engine: Engine, solutions: int
) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, "checker", method="prm", dataset="solutions")
    form = parse_page(client.get("/runs/1").text).one(id="try-form")

    assert [one.attributes["name"] for one in form.all("textarea")] == ["prompt", "answer"]
    assert "Check it" in form.text
    assert solutions


def test_answer_is_split_into_its_lines() -> None:
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a \n\n b"}]

    assert split_steps({"messages": turns}) == {
        "messages": turns[:1],
        "steps": ["a", "b"],
        "correct": [True, True],
    }


@pytest.mark.parametrize("count", [0, 1])
def test_solution_without_answer_is_refused(count: int) -> None:
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "\n"}]

    with pytest.raises(InvalidError, match="A prompt and its answer"):
        split_steps({"messages": turns[: count + 1]})
