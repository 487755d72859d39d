"""How-tos on bringing data, models and recipes."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import httpx2
import pytest
import torch
from safetensors.torch import load_file

from studio import starter
from studio.client import Studio
from tests.guides.reader import Reader, blocks
from tests.support.live_studio import Studio as LiveStudio
from tests.support.sample_images import data_url, image
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

BEFORE = """
import os, time, httpx2
studio = httpx2.Client(base_url=os.environ["STUDIO_URL"] + "/api/v1")
"""


def test_bring_data(reader: Reader, client: Studio, lives: LiveStudio, tmp_path: Path) -> None:
    program, rows, image_turn = blocks("bring-data")

    dataset = client.datasets.get(int(reader.python(BEFORE + program)))
    assert (dataset.name, dataset.status) == ("mine", "draft")
    for number, row in enumerate(rows.splitlines()):
        file = tmp_path / f"tasks-{number}.jsonl"
        file.write_text(f"{row}\n" * 4, encoding="utf-8")
        assert client.datasets.add(file).kind == "task"
    described = json.loads(image_turn)
    stored = import_image(lives, client, tmp_path / "image.jsonl")
    assert set(described) == set(stored)
    assert set(described["images"][0]) == set(stored["images"][0])


def import_image(lives: LiveStudio, client: Studio, file: Path) -> dict[str, Any]:
    """Import a row with an image, and return the turn that has it."""
    shown = {"type": "image_url", "image_url": {"url": data_url(image("red"))}}
    turns = [{"role": "user", "content": [shown]}, {"role": "assistant", "content": "red"}]
    file.write_text(json.dumps({"messages": turns}) + "\n", encoding="utf-8")
    number = client.datasets.add(file).id
    wait_until(lambda: client.datasets.get(number).status == "ready")
    row = lives.api.get(f"/datasets/{number}/rows").raise_for_status().json()["data"][0]
    turn: dict[str, Any] = row["messages"][0]
    return turn


def test_bring_a_model(reader: Reader, lives: LiveStudio, tmp_path: Path) -> None:
    sources, convert = blocks("bring-a-model")
    old, new = tmp_path / "OLD", lives.home.parent / "mine"
    old.mkdir()
    starter.write_model(old)
    weights = old / "model.safetensors"
    torch.save(load_file(weights), old / "pytorch_model.bin")
    weights.unlink()
    reader.shell(convert.replace("OLD NEW", f"{old} {new}"))
    hub, folder = (json.loads(line) for line in sources.splitlines())

    def add(source: dict[str, object]) -> httpx2.Response:
        return lives.api.post("/models", json=source).raise_for_status()

    number = add(hub).json()["id"]
    wait_until(lambda: find_task(lives, number)["status"] in {"succeeded", "failed"})
    assert find_task(lives, number)["error"] is None
    folder["source"]["path"] = str(new)
    assert add(folder).json()["name"] == "mine"


def find_task(lives: LiveStudio, number: int) -> dict[str, Any]:
    found: dict[str, Any] = lives.api.get(f"/chores/{number}").raise_for_status().json()
    return found


def test_come_from_another_tool(reader: Reader, client: Studio, lives: LiveStudio) -> None:
    settings, commands, run_script = blocks("come-from-another-tool")
    folder = reader.folder
    (folder / "mine.yaml").write_text(f"{settings}max_steps: 2\n", encoding="utf-8")

    reader.shell(commands)
    run = client.runs.wait(next(iter(client.runs.list())).id)
    assert (run.status, run.step, run.recipe["adapter"]["r"]) == ("succeeded", 2, 8)
    reader.shell("studio recipes script recipe.yaml --output train.py")
    (folder / "model").mkdir()
    starter.write_model(folder / "model")
    rows = lives.api.get("/datasets/1/versions/1/rows.zip").raise_for_status()
    ZipFile(BytesIO(rows.content)).extract("train.jsonl", folder)
    printed = reader.shell(run_script.replace("path/to/the/model", "model"))
    assert "'loss'" in printed
