"""The validation texts that an embedding model finds similar, before and after training."""

import io
import json
from array import array
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from transformers import AutoTokenizer

from studio.db.session import unit_of_work
from studio.protocols.inference_service import GenerationChunk, GenerationEnd, GenerationRequest
from studio.protocols.run_dir import RunDir
from studio.settings import Settings
from tests.support import factories, inference_services, tokenizer_services
from tests.support.inference_services import NO_SLOT, STARTED
from tests.support.page_reader import parse_page
from tests.web.chat.test_try_it import tokenizer_home, write_files

__all__ = ["tokenizer_home"]

ROWS = [{"anchor": f"What is {one}?", "positive": f"It is {one}."} for one in range(40)]


@pytest.fixture
def run(client: TestClient, engine: Engine, settings: Settings, tokenizer_home: Path) -> RunDir:
    """Make a finished embedding model with an adapter, which held out every fifth row."""
    content = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    files = {"file": ("pairs.jsonl", io.BytesIO(content), "application/jsonl")}
    added = client.post("/api/v1/datasets", files=files, data={"name": "pairs"})
    assert (added.status_code, added.json()["kind"]) == (201, "pairs")
    (settings.home / "desk.sock").symlink_to(tokenizer_home / "desk.sock")
    with unit_of_work(engine) as db:
        factories.connect_worker(db, "plain")
        made = factories.make_finished_run(
            db,
            method="embed",
            dataset="pairs",
            embedding={"query_prompt": "query: "},
            data={"validation_share": 0.2},
        )
        folder = write_files(settings, made, tokenizer_home / "base")
    tokenizer_services.write_model(folder.artifacts)
    return folder


def answer(request: GenerationRequest) -> Iterator[GenerationChunk]:
    """Give the run's model other vectors than the base model: the later, the more similar."""
    yield STARTED
    for place in range(len(request.texts)):
        cosine = 1.0 if not place else place / 10 if request.adapter else 0.5
        content = array("f", [cosine, (1 - cosine**2) ** 0.5]).tobytes()
        yield GenerationChunk(values=[b64encode(content).decode()])
    yield GenerationChunk(end=GenerationEnd(reason="stop", tokens=99))


def search(client: TestClient) -> Any:  # noqa: ANN401 -- the JSON of an answer
    asked = {"messages": [{"role": "user", "content": "What is 7?"}]}
    return client.post("/api/v1/runs/1/predict", json=asked)


def test_most_similar_text_comes_first(client: TestClient, settings: Settings, run: RunDir) -> None:
    with inference_services.run_inference_service(settings, answer) as service:
        told = search(client).json()
    reader = AutoTokenizer.from_pretrained(run.artifacts)
    before, after = service.requests
    read = [reader.decode(ids) for ids in after.texts]

    assert [one["similarity"] for one in told["neighbours"]] == pytest.approx(
        [place / 10 for place in range(8, 0, -1)]
    )
    assert {one["before"] for one in told["neighbours"]} == {0.5}
    assert [one["text"] for one in told["neighbours"]] == read[:0:-1]
    assert read[0] == "query: What is 7?"
    assert set(read[1:]) < {row["positive"] for row in ROWS}
    assert (told["tokens"], told["scores"], told["answer"]) == (99, {}, "")
    assert (before.adapter, after.adapter) == ("", str(run.artifacts))
    assert (before.pooling, before.texts) == ("mean", after.texts)


@pytest.mark.usefixtures("run")
def test_page_shows_similar_texts(client: TestClient, settings: Settings) -> None:
    form = parse_page(client.get("/runs/1").text).one(id="try-form")
    with inference_services.run_inference_service(settings, answer):
        result = parse_page(client.post(form.attributes["action"], data={"prompt": "7?"}).text)
    rows = [row.text.split() for row in result.all("tr")]

    assert "Find similar texts" in form.text
    assert rows[0] == ["Text", "Similarity", "Before", "training"]
    assert [row[-2:] for row in rows[1:3]] == [["0.800", "0.500"], ["0.700", "0.500"]]


@pytest.mark.usefixtures("run")
def test_page_says_why_it_finds_nothing(client: TestClient, settings: Settings) -> None:
    with inference_services.run_inference_service(settings, lambda _: [NO_SLOT]):
        result = client.post("/runs/1/try", data={"prompt": "7?"})

    assert "No slot is free." in result.text


def test_deleted_base_model_is_left_out(
    client: TestClient, settings: Settings, run: RunDir, tmp_path: Path
) -> None:
    spec = json.loads(run.job.read_text(encoding="utf-8"))
    run.job.write_text(json.dumps(spec | {"model": str(tmp_path / "gone")}), encoding="utf-8")
    with inference_services.run_inference_service(settings, answer):
        told = search(client).json()

    assert {one["before"] for one in told["neighbours"]} == {None}


@pytest.mark.usefixtures("run")
def test_deleted_rows_cannot_be_searched(client: TestClient, settings: Settings) -> None:
    for path in settings.datasets.rglob("train.jsonl"):
        path.unlink()
    with inference_services.run_inference_service(settings, answer):
        told = search(client)

    assert told.status_code == 409
    assert "have been deleted" in told.json()["error"]["message"]


@pytest.mark.usefixtures("run")
def test_vectors_are_not_evaluated_and_hold_no_chat(client: TestClient) -> None:
    refused = client.post("/api/v1/runs/1/evaluations", json={})

    assert refused.status_code == 409
    assert "searches or ranks texts" in refused.json()["error"]["message"]
    for page in ("evaluation", "answers", "details", "charts", "files", "numerics"):
        assert client.get(f"/runs/1/{page}").status_code in {200, 303, 404}, page
    assert "searches or ranks texts" in client.get("/runs/1/evaluation").text
    assert "Evaluate it" not in client.get("/runs/1").text
    assert "/runs/1/chat" not in client.get("/runs/1").text
