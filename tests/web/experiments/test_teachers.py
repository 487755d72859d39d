"""The form of a distillation: its teacher is chosen beside the base model."""

import shutil
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import select

from studio import starter
from studio.db.session import unit_of_work
from studio.db.tables import Run
from studio.services.models import models
from tests.support.page_reader import Node, field_value, form_fields, parse_page
from tests.unit.weights import safetensors_folders

NAME = "distillation.teacher"
TOKENIZER = Path(starter.__file__).parent / "model" / "tokenizer.json"


@pytest.fixture
def better(engine: Engine, tmp_path: Path) -> str:
    """List a model with the tokenizer of the starter."""
    with unit_of_work(engine) as db:
        folder = safetensors_folders.write(tmp_path / "better", {"a": ("F32", [1.0, 2.0])})
        shutil.copytree(models.require(db, "starter"), folder, dirs_exist_ok=True)
        for place in (folder, Path(models.require(db, "starter"))):
            shutil.copy(TOKENIZER, place)
        models.add_folder(db, str(folder), "better")
    return "better"


def form_of(client: TestClient, query: str = "") -> Node:
    return parse_page(client.get(f"/new?method=distil{query}").text).one(id="form")


def test_teacher_is_asked_for_once_beside_the_base_model(client: TestClient, better: str) -> None:
    form = form_of(client)
    fields = [one for one in form.all("input") if one.attributes.get("name") == NAME]
    card = form.one("section", **{"aria-labelledby": "decision-2"})

    assert len(fields) == 1
    assert card.one("input", name=NAME).attributes["list"] == "distillation-teacher-known"
    offered = card.one("datalist", id="distillation-teacher-known").all("option")
    assert better in [one.attributes["value"] for one in offered]


def test_form_says_that_a_teacher_is_missing(client: TestClient) -> None:
    answer = client.post("/new", data=dict(form_fields(form_of(client))))
    page = parse_page(answer.text)

    assert answer.status_code == 422
    (problem,) = page.all(id="distillation-teacher-problem")
    assert "There is no teacher to learn from." in problem.text
    assert page.one("input", name=NAME).attributes["aria-invalid"] == "true"


def test_change_of_the_teacher_redraws_what_is_wrong(client: TestClient, better: str) -> None:
    data = dict(form_fields(form_of(client))) | {NAME: "starter"}
    drawn = client.post("/new/advice", data=data).text
    assert "#distillation-teacher-facts" in drawn
    assert "The teacher is the base model itself" in drawn
    again = client.post("/new/advice", data=data | {NAME: better}).text
    assert "The teacher is the base model itself" not in again


def test_run_starts_with_the_teacher(client: TestClient, better: str, engine: Engine) -> None:
    data = dict(form_fields(form_of(client))) | {NAME: better}
    answer = client.post("/new", data=data, follow_redirects=False)

    assert answer.status_code == 303, answer.text
    with unit_of_work(engine) as db:
        run = db.exec(select(Run)).one()
        assert run.recipe.teacher is not None
        assert run.recipe.teacher.name == better


def test_other_methods_ask_for_no_teacher(client: TestClient) -> None:
    page = parse_page(client.get("/new").text)

    assert NAME not in [one.attributes.get("name") for one in page.all("input")]


def test_newest_result_with_the_same_tokens_is_suggested(
    client: TestClient, better: str, engine: Engine
) -> None:
    assert field_value(form_of(client), NAME) == ""
    with unit_of_work(engine) as db:
        model = models.find_by_name(db, better)
        assert model is not None
        model.kind = "run"
        db.add(model)
    assert field_value(form_of(client), NAME) == better
