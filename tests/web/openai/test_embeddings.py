"""Vectors in OpenAI's shape: texts or tokens, floats or base64, whole or shortened."""

from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterator
from math import hypot
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
from tests.support.inference_services import (
    NO_SLOT,
    STARTED,
    FakeInferenceService,
    run_inference_service,
)
from tests.web.chat.test_try_it import tokenizer_home, write_files
from tests.web.openai.test_jobs import error

__all__ = ["tokenizer_home"]

MODEL = "ft:starter:local::1"
VECTORS = ([0.6, 0.0, 0.8], [0.0, 0.6, 0.8])


def answer(request: GenerationRequest) -> Iterator[GenerationChunk]:
    yield STARTED
    for place, _ids in enumerate(request.texts):
        content = array("f", VECTORS[place % 2]).tobytes()
        yield GenerationChunk(values=[b64encode(content).decode()])
    tokens = sum(map(len, request.texts))
    yield GenerationChunk(end=GenerationEnd(reason="stop", tokens=tokens, computed_in="float32"))


@pytest.fixture
def artifacts(engine: Engine, settings: Settings, tokenizer_home: Path) -> Path:
    """Make a finished embedding model with an adapter, and one that writes."""
    (settings.home / "desk.sock").symlink_to(tokenizer_home / "desk.sock")
    with unit_of_work(engine) as db:
        prompts = {"query_prompt": "query: ", "passage_prompt": "passage: "}
        made = factories.make_finished_run(
            db, method="embed", embedding=prompts, data={"max_length": 16}
        )
        folder = write_files(settings, made, tokenizer_home / "base")
        factories.make_finished_run(db, "writer")
    tokenizer_services.write_model(folder.artifacts)
    return folder.artifacts


@pytest.fixture
def service(settings: Settings) -> Iterator[FakeInferenceService]:
    with run_inference_service(settings, answer) as running:
        yield running


def ask(client: TestClient, given: object, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 -- any field
    response = client.post("/v1/embeddings", json={"model": MODEL, "input": given} | changes)
    told: dict[str, Any] = response.json()
    assert response.status_code == 200, told
    return told


def test_texts_have_vectors(
    client: TestClient, service: FakeInferenceService, artifacts: Path
) -> None:
    told = ask(client, ["a cat", "a dog"])
    reader = AutoTokenizer.from_pretrained(artifacts)
    (request,) = service.requests

    assert (told["object"], told["model"]) == ("list", MODEL)
    assert [one["index"] for one in told["data"]] == [0, 1]
    for one, vector in zip(told["data"], VECTORS, strict=True):
        assert one["object"] == "embedding"
        assert one["embedding"] == pytest.approx(vector)
    assert [reader.decode(ids) for ids in request.texts] == ["a cat", "a dog"]
    total = sum(map(len, request.texts))
    assert told["usage"] == {"prompt_tokens": total, "total_tokens": total}
    assert (request.pooling, request.adapter, request.ids) == ("mean", str(artifacts), [])


@pytest.mark.usefixtures("artifacts")
@pytest.mark.parametrize(
    ("given", "read"),
    [([1, 2, 3], [[1, 2, 3]]), ([[1, 2], [3]], [[1, 2], [3]]), ([[5] * 99], [[5] * 16])],
)
def test_tokens_are_read_as_they_are(
    given: object, read: list[list[int]], client: TestClient, service: FakeInferenceService
) -> None:
    ask(client, given, input_type="query")

    assert service.requests[0].texts == read


@pytest.mark.parametrize(("kind", "prompt"), [("query", "query: "), ("document", "passage: ")])
def test_prompts_of_training_are_written(
    kind: str, prompt: str, client: TestClient, service: FakeInferenceService, artifacts: Path
) -> None:
    ask(client, "a cat", input_type=kind)
    reader = AutoTokenizer.from_pretrained(artifacts)

    assert [reader.decode(ids) for ids in service.requests[0].texts] == [f"{prompt}a cat"]


@pytest.mark.usefixtures("artifacts", "service")
def test_vectors_in_base64_are_the_same(client: TestClient) -> None:
    told = ask(client, "a cat", encoding_format="base64")

    assert array("f", b64decode(told["data"][0]["embedding"])).tolist() == pytest.approx(VECTORS[0])


@pytest.mark.usefixtures("artifacts", "service")
@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_shorter_vectors_have_length_one(encoding: str, client: TestClient) -> None:
    told = ask(client, ["a", "b"], dimensions=2, encoding_format=encoding)
    vectors = [one["embedding"] for one in told["data"]]
    if encoding == "base64":
        vectors = [array("f", b64decode(vector)).tolist() for vector in vectors]

    assert vectors == [pytest.approx([1.0, 0.0]), pytest.approx([0.0, 1.0])]
    assert all(hypot(*vector) == pytest.approx(1.0) for vector in vectors)


@pytest.mark.usefixtures("artifacts", "service")
@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"input": "a", "model": "starter"}, "model", f"These models do: {MODEL}."),
        ({"input": "a", "model": "ft:starter:local::2"}, "model", f"These models do: {MODEL}."),
        ({"input": "a", "dimensions": 4}, "dimensions", "vectors of 3 numbers"),
        ({"input": ["a", ""]}, "input", "Text 2 of the input is empty."),
        ({"input": ""}, "input", "Text 1 of the input is empty."),
        ({"input": ["a"] * 2049}, "input", "not 2,049"),
        ({"input": {"text": "a"}}, "input", ""),
        ({"input": []}, "input", "not 0"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "float"),
        ({"input": "a", "colour": 1}, "colour", "Unrecognized request argument"),
    ],
)
def test_what_cannot_be_embedded_says_why(
    body: dict[str, Any], param: str, message: str, client: TestClient
) -> None:
    response = client.post("/v1/embeddings", json={"model": MODEL} | body)
    told = response.json()["error"]

    assert response.status_code in {400, 422}
    assert told["param"].startswith(param)
    assert message in told["message"]


@pytest.mark.usefixtures("artifacts", "service")
def test_unknown_model_is_not_found(client: TestClient) -> None:
    response = client.post("/v1/embeddings", json={"model": "gpt-4o", "input": "a"})

    assert error(response) == (404, "model_not_found", "model")


@pytest.mark.usefixtures("artifacts")
def test_without_a_slot_it_says_so(client: TestClient, settings: Settings) -> None:
    with run_inference_service(settings, lambda _: [NO_SLOT]):
        response = client.post("/v1/embeddings", json={"model": MODEL, "input": "a"})

    assert response.status_code == 503
    assert "No slot is free." in response.json()["error"]["message"]


@pytest.mark.usefixtures("artifacts", "service")
def test_embedding_model_is_listed_and_holds_no_chat(client: TestClient) -> None:
    listed = [one["id"] for one in client.get("/v1/models").json()["data"]]
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
    told = client.post("/v1/chat/completions", json=asked).json()["error"]

    assert MODEL in listed
    assert "searches or ranks texts" in told["message"]
    assert "/v1/embeddings" in told["message"]
