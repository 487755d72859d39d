"""Runs whose model gives scores: nothing that needs a model which writes text is offered."""

import io
import json

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from tests.support.factories import make_finished_run
from tests.support.page_reader import form_fields, parse_page

PAIRS = "".join(
    json.dumps(
        {
            "messages": [{"role": "user", "content": f"What is {number} plus one?"}],
            "chosen": [{"role": "assistant", "content": f"It is {number + 1}."}],
            "rejected": [{"role": "assistant", "content": "No idea."}],
        }
    )
    + "\n"
    for number in range(30)
)


@pytest.fixture
def pairs(client: TestClient) -> str:
    """Add a dataset of preferences."""
    files = {"file": ("pairs.jsonl", io.BytesIO(PAIRS.encode()), "application/jsonl")}
    answer = client.post("/api/v1/datasets", files=files, data={"name": "pairs"})
    assert answer.status_code == 201, answer.text
    return "pairs"


@pytest.fixture
def scoring(engine: Engine, pairs: str) -> None:
    """Make a finished run of a reward model, and then one that writes text."""
    with unit_of_work(engine) as db:
        make_finished_run(db, "judge", method="reward", dataset=pairs)
        make_finished_run(db, "writer")
        make_finished_run(db, "translator", method="seq2seq", base_model="google-t5/t5-small")


def links(client: TestClient, path: str) -> set[str | None]:
    return {one.attributes.get("href") for one in parse_page(client.get(path).text).all("a")}


@pytest.mark.usefixtures("scoring")
def test_run_page_offers_no_chat(client: TestClient) -> None:
    assert "/runs/1/chat" not in links(client, "/runs/1")
    assert "/runs/2/chat" in links(client, "/runs/2")
    assert "/runs/3/chat" not in links(client, "/runs/3")


@pytest.mark.usefixtures("scoring")
def test_a_model_that_rewrites_has_answers_and_a_box(client: TestClient) -> None:
    assert "/runs/1/answers" not in links(client, "/runs/1")
    assert "/runs/3/answers" in links(client, "/runs/3")
    assert "Rewrite it" in parse_page(client.get("/runs/3").text).one(id="try-form").text
    assert "holds no conversation" in client.get("/runs/3/chat").text


@pytest.mark.usefixtures("scoring")
def test_chat_page_says_why_there_is_none(client: TestClient) -> None:
    assert "reads text and writes none" in client.get("/runs/1/chat").text


@pytest.mark.usefixtures("scoring")
def test_openai_lists_only_models_that_write(client: TestClient) -> None:
    names = [one["id"] for one in client.get("/v1/models").json()["data"]]

    assert [name for name in names if name.startswith("ft:")] == ["ft:starter:local::2"]


def test_form_asks_for_no_sample_answers(client: TestClient) -> None:
    form = parse_page(client.get("/new?method=reward").text).one(id="form")
    names = dict(form_fields(form))

    assert "scoring.centring" in names
    assert not [name for name in names if name.startswith("samples")]


def test_sample_answers_cannot_be_asked_for(client: TestClient, pairs: str) -> None:
    recipe = {"method": "reward", "base_model": "starter", "dataset": pairs}
    asked = {"name": "judge", "recipe": recipe | {"samples": {"prompts": 4}}}
    answer = client.post("/api/v1/experiments", json=asked)

    (error,) = answer.json()["error"]["errors"]
    assert (answer.status_code, error["param"]) == (422, "recipe.samples.prompts")
