"""Evaluations of models that write nothing: compared with a rule, on the page and over REST."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.evaluations import AnswerSet
from studio.db.session import unit_of_work
from studio.db.tasks import Task
from studio.evaluation.rows import AnswerKind
from studio.protocols.evaluation import EvaluationJob
from studio.services.evaluations.evaluations import RULES
from studio.services.tasks import tasks
from studio.settings import Settings
from tests.support import evaluated_runs
from tests.support.factories import make_finished_run
from tests.support.page_reader import parse_page

API = "/api/v1/runs/1/evaluations"
ROWS = 20
LABELS = ["news", "sport"] * (ROWS // 2)
ONE_WRONG = [*LABELS[:-1], "news"]


PAIRS = [{"prompt": f"{n}?", "chosen": "Yes.", "rejected": "No."} for n in range(ROWS)]
STEPS = [
    {"prompt": f"{n}?", "completions": ["One.", "Two."], "labels": [True, False]}
    for n in range(ROWS)
]
WORDS = [{"tokens": ["Ann", "ran", f"{n}"], "ner_tags": ["B-PER", "O", "O"]} for n in range(ROWS)]


def upload(client: TestClient, rows: list[dict[str, Any]]) -> str:
    """Upload a file and return the name of its dataset."""
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    answer = client.post("/api/v1/datasets", files={"file": ("rows.jsonl", content)})
    name: str = answer.raise_for_status().json()["name"]
    return name


def make_run(
    engine: Engine, settings: Settings, method: str = "classify", dataset: str = "starter"
) -> int:
    with unit_of_work(engine) as db:
        made = make_finished_run(db, method=method, dataset=dataset, adapter={"kind": "lora"})
        evaluated_runs.lay_out(db, settings, made)
        return made.id or 0


@pytest.fixture
def run(engine: Engine, settings: Settings) -> int:
    """Make a classifier that was evaluated."""
    number = make_run(engine, settings)
    with unit_of_work(engine) as db:
        evaluated_runs.evaluate(db, settings, number, ["news"] * ROWS, ONE_WRONG, LABELS)
    return number


def jobs(engine: Engine) -> list[EvaluationJob]:
    with unit_of_work(engine) as db:
        found = [tasks.latest(db, "evaluate", f"answers:{number}") for number in (1, 2)]
        return [EvaluationJob.model_validate(one.params) for one in found if isinstance(one, Task)]


@pytest.mark.parametrize(
    ("method", "kind", "rows"),
    [
        ("classify", "label", None),
        ("regress", "number", None),
        ("reward", "score", PAIRS),
        ("prm", "steps", STEPS),
        ("tokens", "entities", WORDS),
    ],
)
def test_rule_and_model_are_asked(
    method: str,
    kind: AnswerKind,
    rows: list[dict[str, Any]] | None,
    client: TestClient,
    engine: Engine,
    settings: Settings,
) -> None:
    dataset = upload(client, rows) if rows else "starter"
    number = make_run(engine, settings, method, dataset)
    page = parse_page(client.get(f"/runs/{number}/evaluation").text)
    answer = client.post(f"/api/v1/runs/{number}/evaluations", json={"rows": 8})
    asked = parse_page(client.get(f"/runs/{number}/evaluation").text)
    rule, model = jobs(engine)

    assert "see how much better it is than a simple rule" in page.text
    assert "Longest answer" not in page.text
    assert answer.status_code == 202
    assert answer.json()["base"]["model"] == RULES[kind]
    assert RULES[kind] in asked.text
    assert rule.model is None
    assert rule.trained_on == rule.train
    assert model.model is not None
    assert model.model.gives_scores
    assert {one.answers for one in (rule, model)} == {kind}
    assert {one.method for one in (rule, model)} == {method}


def test_runs_on_the_same_data_share_the_rule(engine: Engine, settings: Settings) -> None:
    numbers = [make_run(engine, settings) for _ in range(2)]
    with unit_of_work(engine) as db:
        made = [
            evaluated_runs.evaluate(db, settings, number, LABELS, LABELS, LABELS)
            for number in numbers
        ]

        assert made[0].base_id == made[1].base_id
        assert made[0].tuned_id != made[1].tuned_id
        assert db.get_one(AnswerSet, made[0].base_id).is_rule


def test_page_shows_labels_beside_the_rule(client: TestClient, run: int) -> None:
    page = parse_page(client.get(f"/runs/{run}/evaluation").text)
    head = [one.text for one in page.all("table")[0].all("tr")[0].all("th")]
    metrics = {row.one("th").text: row.text for row in page.all("table")[0].all("tr")[1:]}
    worst = page.all("table")[1].all("tr")[1]

    assert page.one(id="verdict-title").text.startswith("Better: 50 % → 95 % right labels")
    assert head[1:3] == ["Rule", "This run"]
    assert list(metrics) == ["Right labels decides", "Macro F1"]
    assert "Rule: always the most common labels" in page.text
    assert "Question 19?" in worst.text
    assert "wrong" in worst.text
    for absent in ("Judged", "Chat", "Prefer the expected answer", "Ask again"):
        assert absent not in page.one(id="evaluation-results").text


def test_overview_offers_the_evaluation_and_shows_the_verdict(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    number = make_run(engine, settings)
    before = client.get(f"/runs/{number}").text
    with unit_of_work(engine) as db:
        evaluated_runs.evaluate(db, settings, number, ["news"] * ROWS, ONE_WRONG, LABELS)

    assert "than a simple rule" in before
    assert "Better: 50 % → 95 % right labels" in client.get(f"/runs/{number}").text


def test_rows_of_numbers_are_sorted_by_their_error(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    number = make_run(engine, settings, "regress")
    true = [f"{place}" for place in range(ROWS)]
    near = [f"{place + (place == 3) * 5 - (place == 7) * 2}" for place in range(ROWS)]
    with unit_of_work(engine) as db:
        evaluated_runs.evaluate(db, settings, number, ["9.5"] * ROWS, near, true)
    rows = client.get(f"{API}/1/rows?sort=worst&limit=3").json()["data"]
    page = parse_page(client.get(f"/runs/{number}/evaluation").text)

    assert [(row["number"], row["tuned"]["score"]) for row in rows[:2]] == [(4, 5), (8, 2)]
    assert page.one(id="verdict-title").text.startswith("Better")
    assert "MAE 5" in page.all("table")[1].all("tr")[1].text


def test_text_without_entities_comes_last_if_none_were_found(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    number = make_run(engine, settings, "tokens", upload(client, WORDS))
    found = "PER: Ann (1)"
    with unit_of_work(engine) as db:
        evaluated_runs.evaluate(db, settings, number, [""] * 3, ["", found, ""], ["", found, found])
    rows = client.get(f"{API}/1/rows?sort=worst").json()["data"]

    assert [(row["number"], row["tuned"]["score"]) for row in rows] == [(3, 0), (2, 1), (1, None)]


def test_answers_that_are_no_texts_are_not_judged_or_kept(client: TestClient, run: int) -> None:
    judged = client.post(f"{API}/1/judgements", json={"judge": "model:starter"})
    kept = client.post(
        f"/runs/{run}/evaluations/1/feedback", data={"position": 0, "choice": "conversation"}
    )

    assert (judged.status_code, kept.status_code) == (409, 409)
    assert "not texts that a model wrote" in judged.json()["error"]["message"]
    assert "not texts that a model wrote" in kept.text


def test_dataset_of_other_rows_is_refused_in_words(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    number = make_run(engine, settings, "tokens", upload(client, WORDS))
    answer = client.post(f"/api/v1/runs/{number}/evaluations", json={"dataset": "starter"})

    assert answer.status_code == 422
    assert "The rows of starter cannot be answered" in answer.json()["error"]["message"]
    assert answer.json()["error"]["hint"] == (
        "Choose a dataset whose rows are one of these: texts with tagged words."
    )
