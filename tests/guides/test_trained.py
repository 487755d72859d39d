"""Recipes of how-tos, trained for two steps on models that are small."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from studio import starter
from studio.client import Studio
from studio.client.schemas import Dataset
from tests.guides.reader import Reader, blocks
from tests.support.live_studio import Studio as LiveStudio
from tests.support.sample_images import data_url, image
from tests.support.vision_models import write_vision_model
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


def train(client: Studio, text: str, **changes: Any) -> int:  # noqa: ANN401 -- any field of a recipe
    """Train a recipe of a how-to with another model and dataset, and return the run's ID."""
    recipe = yaml.safe_load(text) | changes
    recipe["optimisation"] = recipe.get("optimisation", {}) | {"max_steps": 2}
    run = client.runs.wait(client.runs.submit("guide", recipe).id)
    assert (run.status, run.step) == ("succeeded", 2), run.error
    return run.id


def add(client: Studio, file: Path) -> Dataset:
    """Import a file, and return its dataset once the rows are there."""
    number = client.datasets.add(file).id
    wait_until(lambda: client.datasets.get(number).status == "ready")
    return client.datasets.get(number)


def test_learn_from_a_teacher(client: Studio, lives: LiveStudio) -> None:
    (recipe,) = blocks("learn-from-a-teacher")
    folder = lives.home.parent / "teacher"
    folder.mkdir()
    starter.write_model(folder)
    client.models.add(str(folder), name="teacher")
    distillation = yaml.safe_load(recipe)["distillation"] | {"teacher": "teacher"}

    train(client, recipe, base_model="starter", dataset="starter", distillation=distillation)


def test_search_texts(client: Studio, reader: Reader, tmp_path: Path) -> None:
    """The starter's vectors have 192 numbers."""
    recipe, program = blocks("search-texts")
    recipe = recipe.replace("256, 64", "128, 64")
    rows = ({"query": f"What is {one}?", "passage": f"{one} is a number."} for one in range(300))
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    pairs = add(client, file)

    number = train(client, recipe, base_model="starter", dataset=pairs.name)
    known = program.replace("ft:starter:local::7", f"ft:starter:local::{number}")
    assert reader.python(known) == "192\n"


def test_train_with_images(client: Studio, lives: LiveStudio, tmp_path: Path) -> None:
    (recipe,) = blocks("train-with-images")
    folder = write_vision_model(lives.home.parent / "llava", "llava")
    client.models.add(str(folder), name="llava")
    parts = [
        {"type": "image_url", "image_url": {"url": data_url(image("red", size=(40, 30)))}},
        {"type": "text", "text": "What colour is it?"},
    ]
    answered = [{"role": "user", "content": parts}, {"role": "assistant", "content": "red"}]
    file = tmp_path / "receipts.jsonl"
    file.write_text((json.dumps({"messages": answered}) + "\n") * 20, encoding="utf-8")

    train(client, recipe, base_model="llava", dataset=add(client, file).name)
