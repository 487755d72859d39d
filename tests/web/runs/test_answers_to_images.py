"""Answers to rows with images: these are shown beside them, wherever answers are."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import select

from studio.db.evaluations import Answer
from studio.db.session import unit_of_work
from studio.services.runs import attempts
from studio.settings import Settings
from tests.support import evaluated_runs, factories
from tests.support.page_reader import Node, parse_page
from tests.web.runs.test_sample_answers import sampled

NAME = "a" * 64
ADDRESS = f"/datasets/1/versions/1/images/{NAME}"
PROMPT = f"[image {NAME}]\nWhat is it?"
MARK = "[image"


@pytest.fixture
def run(engine: Engine, settings: Settings) -> int:
    """Make a run that answered a question about an image, and was evaluated with it."""
    with unit_of_work(engine) as db:
        run = factories.make_finished_run(db, adapter={"kind": "lora"})
        told = [sampled(0, "No", "before", 0), sampled(0, "A cat", "after", 9)]
        told = [one.model_copy(update={"prompt": PROMPT}) for one in told]
        attempts.apply_events(db, run, told, 2000)
        evaluated_runs.lay_out(db, settings, run)
        evaluated_runs.evaluate(db, settings, run.id or 0, ["No"], ["R"], ["R"])
        for answer in db.exec(select(Answer)).all():
            answer.prompt = PROMPT
        return run.id or 0


def images(page: Node) -> list[str | None]:
    return [image.attributes.get("src") for image in page.all("img")]


@pytest.mark.parametrize("tab", ["", "/answers", "/parts/answers", "/evaluation"])
def test_image_stands_beside_its_answers(client: TestClient, run: int, tab: str) -> None:
    text = client.get(f"/runs/{run}{tab}").text

    assert ADDRESS in images(parse_page(text))
    assert MARK not in text
    assert "What is it?" in text


@pytest.mark.parametrize("path", ["/compare?runs=1,2", "/runs/1/evaluations/1/vote"])
def test_other_pages_say_that_there_is_one(client: TestClient, run: int, path: str) -> None:
    assert run == 1
    text = client.get(path).text

    assert MARK not in text


@pytest.mark.usefixtures("run")
def test_row_with_an_image_is_not_asked_or_kept_without_it(client: TestClient) -> None:
    page = parse_page(client.get("/runs/1/evaluation").text).one(id="rows")

    assert "Add to data" not in page.text
    assert "Ask again" not in page.text
