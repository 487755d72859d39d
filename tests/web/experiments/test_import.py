"""Import of recipes from other tools: the page, the API, and the form that opens."""

import ast
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import func, select

from studio.db.session import read_session, unit_of_work
from studio.db.tables import Experiment
from studio.services import experiments
from tests.support import factories
from tests.support.page_reader import Node, field_value, parse_page

FILE = "stage: sft\nmodel_name_or_path: starter\ndataset: starter\nlora_rank: 4\nwarp: 9\n"
UNKNOWN_DATA = FILE.replace("dataset: starter", "dataset: identity")


def preview(client: TestClient, text: str) -> Node:
    return parse_page(client.post("/new/import", data={"text": text}).text)


def listed(page: Node, title: str) -> list[str]:
    """Return the keys in one of the lists of the report."""
    tables = [table for table in page.all("table") if table.one("caption").text == title]
    return [
        row.one("th").one("code").text for table in tables for row in table.one("tbody").all("tr")
    ]


def count_experiments(engine: Engine) -> int:
    with read_session(engine) as db:
        return db.exec(select(func.count()).select_from(Experiment)).one()


def test_preview_lists_each_key(client: TestClient) -> None:
    page = preview(client, FILE)

    assert listed(page, "Taken over") == ["stage", "model_name_or_path", "dataset", "lora_rank"]
    assert listed(page, "Not here") == ["warp"]
    assert "learning_rate" in listed(page, "Not in the file")


def test_uploaded_file_counts_before_text(client: TestClient) -> None:
    files = {"file": ("mine.yaml", FILE.encode())}

    page = parse_page(client.post("/new/import", data={"text": "x"}, files=files).text)

    assert listed(page, "Not here") == ["warp"]


def test_form_opens_with_recipe_and_nothing_is_stored(client: TestClient, engine: Engine) -> None:
    opened = client.post("/new/import/form", data={"text": FILE, "method": "sft"})

    form = parse_page(opened.text).one(id="form")
    names = ("base_model", "dataset", "adapter.r", "optimisation.learning_rate", "data.max_length")
    values = [field_value(form, name) for name in names]
    assert values == ["starter", "starter", "4", "5e-05", "2048"]
    assert count_experiments(engine) == 0


def test_dataset_that_is_not_here_stays_to_be_chosen(client: TestClient) -> None:
    page = preview(client, UNKNOWN_DATA)
    opened = client.post("/new/import/form", data={"text": UNKNOWN_DATA, "method": "sft"})

    assert "dataset" in listed(page, "Not here")
    assert field_value(parse_page(opened.text).one(id="form"), "dataset") == ""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "Choose a file or paste its text."),
        (b"a: b", "none of the tools"),
        (b"\xff\xfe\x00", "not text"),
        (b"- [", "has to be YAML or JSON"),
    ],
)
def test_wrong_file_is_refused_in_words(client: TestClient, content: bytes, words: str) -> None:
    files = {"file": ("mine.yaml", content)}

    answer = client.post("/new/import", data={"text": ""}, files=files)

    assert answer.status_code == 422
    assert words in parse_page(answer.text).text


def test_api_imports_recipe(client: TestClient, engine: Engine) -> None:
    answer = client.post("/api/v1/recipes/import", json={"text": FILE})

    body = answer.json()
    assert (body["tool"], body["method"]) == ("LLaMA-Factory", "sft")
    assert body["recipe"]["dataset"] == "starter"
    assert [one["key"] for one in body["absent"]] == ["warp"]
    assert count_experiments(engine) == 0


def test_dataset_is_found_by_its_number_and_its_file(client: TestClient) -> None:
    for name in ("file-1", "data/starter.jsonl"):
        text = f'{{"training_file": "{name}", "model": "starter"}}'
        recipe = client.post("/api/v1/recipes/import", json={"text": text}).json()["recipe"]
        assert (recipe["dataset"], recipe["base_model"]) == ("starter", "starter")


def test_experiment_is_downloaded_as_script(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        experiments.create(db, "plain", factories.make_recipe(precision="fp32"))
        experiments.create(db, "pairs", factories.make_recipe(method="dpo", precision="fp32"))

    script = client.get("/api/v1/experiments/1/script")
    page = client.get("/experiments/1/script.py")
    refused = client.get("/api/v1/experiments/2/script")

    assert script.text == page.text
    assert "SFTTrainer" in ast.unparse(ast.parse(script.text))
    assert refused.status_code == 422
    assert "computes its loss in another way" in refused.json()["error"]["message"]


def test_example_of_how_to_becomes_run(client: TestClient) -> None:
    how_to = Path(__file__).parents[3] / "docs" / "how-to" / "come-from-another-tool.md"
    text = how_to.read_text(encoding="utf-8").partition("```yaml\n")[2].partition("```")[0]

    imported = client.post("/api/v1/recipes/import", json={"text": text}).json()
    run = client.post("/api/v1/runs", json={"name": "mine", "recipe": imported["recipe"]})

    assert imported["absent"] == []
    assert run.status_code == 201, run.text
    assert run.json()["recipe"]["adapter"]["base_dtype"] == "bfloat16"
