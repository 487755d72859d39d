"""Texts sorted by how well they match a query, in the shape of Jina's and Cohere's APIs."""

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
from studio.settings import Settings
from tests.support import factories, tokenizer_services
from tests.support.inference_services import STARTED, FakeInferenceService, run_inference_service
from tests.support.page_reader import parse_page
from tests.web.chat.test_try_it import tokenizer_home, write_files

__all__ = ["tokenizer_home"]

MODEL = "ft:starter:local::1"
TEXTS = ["a cat", "a dog", "a mouse"]
SCORES = (0.25, 0.75, 0.5)


def answer(request: GenerationRequest) -> Iterator[GenerationChunk]:
    yield STARTED
    contents = [array("f", [SCORES[place]]).tobytes() for place in range(len(request.texts))]
    yield GenerationChunk(values=[b64encode(one).decode() for one in contents])
    tokens = sum(map(len, request.texts))
    yield GenerationChunk(end=GenerationEnd(reason="stop", tokens=tokens, computed_in="float32"))


@pytest.fixture
def artifacts(engine: Engine, settings: Settings, tokenizer_home: Path) -> Path:
    """Make a finished reranker with an adapter, and a model that writes."""
    (settings.home / "desk.sock").symlink_to(tokenizer_home / "desk.sock")
    with unit_of_work(engine) as db:
        factories.connect_worker(db, "plain")
        made = factories.make_finished_run(db, method="rerank", data={"max_length": 32})
        folder = write_files(settings, made, tokenizer_home / "base")
        factories.make_finished_run(db, "writer")
    tokenizer_services.write_model(folder.artifacts)
    return folder.artifacts


@pytest.fixture
def service(settings: Settings) -> Iterator[FakeInferenceService]:
    with run_inference_service(settings, answer) as running:
        yield running


def ask(client: TestClient, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 -- any field
    body = {"model": MODEL, "query": "pets?", "documents": TEXTS} | changes
    response = client.post("/v1/rerank", json=body)
    told: dict[str, Any] = response.json()
    assert response.status_code == 200, told
    return told


def test_best_text_comes_first(
    client: TestClient, service: FakeInferenceService, artifacts: Path
) -> None:
    told = ask(client)
    (request,) = service.requests
    reader = AutoTokenizer.from_pretrained(artifacts)

    assert told == {
        "object": "list",
        "model": MODEL,
        "results": [
            {"index": 1, "relevance_score": 0.75},
            {"index": 2, "relevance_score": 0.5},
            {"index": 0, "relevance_score": 0.25},
        ],
        "usage": {"total_tokens": sum(map(len, request.texts))},
    }
    assert [reader.decode(ids) for ids in request.texts] == [f"pets?{text}" for text in TEXTS]
    assert [len(ids) for ids in request.types] == [len(ids) for ids in request.texts]
    assert (request.gives_scores, request.pooling, request.adapter) == (True, "", str(artifacts))


@pytest.mark.usefixtures("artifacts", "service")
def test_some_results_with_their_texts(client: TestClient) -> None:
    told = ask(client, top_n=1, return_documents=True, documents=[{"text": one} for one in TEXTS])

    assert told["results"] == [
        {"index": 1, "relevance_score": 0.75, "document": {"text": "a dog"}},
    ]


@pytest.mark.usefixtures("artifacts", "service")
@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"model": "starter"}, "model", f"These models do: {MODEL}."),
        ({"model": "ft:starter:local::2"}, "model", f"These models do: {MODEL}."),
        ({"documents": []}, "documents", "not 0"),
        ({"documents": ["a", ""]}, "documents", "Document 2 is empty."),
        ({"top_n": 0}, "top_n", "at least 1"),
        ({"query": ""}, "query", ""),
        ({"rank_fields": ["a"]}, "rank_fields", "Unrecognized request argument"),
    ],
)
def test_what_cannot_be_ranked_says_why(
    body: dict[str, Any], param: str, message: str, client: TestClient
) -> None:
    sent = {"model": MODEL, "query": "pets?", "documents": TEXTS} | body
    response = client.post("/v1/rerank", json=sent)
    told = response.json()["error"]

    assert response.status_code in {400, 422}
    assert told["param"].startswith(param)
    assert message in told["message"]


@pytest.mark.usefixtures("artifacts", "service")
def test_reranker_gives_no_vectors(client: TestClient) -> None:
    response = client.post("/v1/embeddings", json={"model": MODEL, "input": "a"})

    assert response.status_code == 400
    assert "Train one with the method Embeddings." in response.json()["error"]["message"]


@pytest.mark.usefixtures("artifacts", "service")
def test_page_and_api_compare_a_query_with_a_text(client: TestClient) -> None:
    form = parse_page(client.get("/runs/1").text).one(id="try-form")
    shown = client.post(form.attributes["action"], data={"prompt": "pets?", "answer": "a cat"})
    turns = [
        {"role": "user", "content": "pets?"},
        {"role": "assistant", "content": "a cat"},
    ]
    told = client.post("/api/v1/runs/1/predict", json={"messages": turns}).json()
    alone = client.post("/api/v1/runs/1/predict", json={"messages": turns[:1]})

    assert parse_page(shown.text).one("dl").text.split() == ["Match", "0.250"]
    assert told["scores"] == {"relevance": 0.25}
    assert alone.status_code in {400, 422}
    assert "A query and a text are required." in alone.json()["error"]["message"]
