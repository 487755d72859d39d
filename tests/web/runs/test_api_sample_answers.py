"""Answers as JSON, and rating them."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.protocols.events import Sampled, SampleStage
from studio.services.runs import attempts
from tests.support.factories import make_finished_run

RATING = "/api/v1/runs/1/samples/0/rating"


@pytest.fixture(autouse=True)
def answered(engine: Engine) -> None:
    stages: tuple[tuple[SampleStage, int], ...] = (("before", 0), ("during", 5), ("after", 9))
    told = [
        Sampled(
            stage=stage,
            step=step,
            position=0,
            prompt="Q?",
            reference="R",
            answer=stage,
            computed_in="" if stage == "before" else "bfloat16 (nf4)",
        )
        for stage, step in stages
    ]
    with unit_of_work(engine) as db:
        attempts.apply_events(db, make_finished_run(db), told, 2000)


def samples(client: TestClient) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = client.get("/api/v1/runs/1/samples").json()["data"]
    return told


def test_answers_are_listed_in_order(client: TestClient) -> None:
    assert [(one["stage"], one["step"], one["rating"]) for one in samples(client)] == [
        ("before", 0, None),
        ("during", 5, None),
        ("after", 9, None),
    ]


def test_answer_shows_compute_format(client: TestClient) -> None:
    formats = [one["computed_in"] for one in samples(client)]

    assert formats == ["", "bfloat16 (nf4)", "bfloat16 (nf4)"]
    page = client.get("/runs/1/answers").text
    assert page.count("computed in bfloat16 (nf4)") == 2


def test_rating_is_stored_and_becomes_metric(client: TestClient) -> None:
    answer = client.put(RATING, json={"score": 4})

    assert (answer.status_code, answer.json()["rating"], answer.json()["answer"]) == (
        *(200, 4),
        "after",
    )
    assert samples(client)[-1]["rating"] == 4
    assert client.get("/api/v1/runs/1").json()["metrics"]["rating"] == 4.0


def test_rating_can_be_deleted(client: TestClient) -> None:
    client.put(RATING, json={"score": 4})

    assert client.delete(RATING).status_code == 204
    assert "rating" not in client.get("/api/v1/runs/1").json()["metrics"]


@pytest.mark.parametrize("score", [0, 6, "4", 4.5, None])
def test_invalid_score_is_rejected(client: TestClient, score: object) -> None:
    assert client.put(RATING, json={"score": score}).status_code == 422


def test_rating_unknown_prompt_returns_404(client: TestClient) -> None:
    assert client.put(RATING.replace("/0/", "/7/"), json={"score": 4}).status_code == 404
