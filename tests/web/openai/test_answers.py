"""Answers in OpenAI's shapes: log-probabilities, repeated prompts, several answers at once."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.protocols import tokenizer_service
from studio.protocols.inference_service import (
    GenerationChunk,
    GenerationEnd,
    GenerationRequest,
    ScoredText,
    TokenScore,
)
from studio.services.models import models
from studio.settings import Settings
from tests.support import tokenizer_services
from tests.support.inference_services import (
    STARTED,
    FakeInferenceService,
    failed,
    run_inference_service,
)
from tests.web.openai.test_files import ASKED
from tests.web.openai.test_jobs import error

TEXT: dict[str, Any] = {"model": "starter", "prompt": "Once upon"}
PART = b"\xc3"


def token(text: str, logprob: float | None, content: bytes | None = None) -> TokenScore:
    return TokenScore(
        id=1,
        text=text,
        bytes=list(text.encode() if content is None else content),
        logprob=logprob,
        top=[ScoredText(text="No", bytes=[78, 111], logprob=-0.5)] if logprob is not None else [],
    )


def answer(request: GenerationRequest) -> Iterator[GenerationChunk]:
    """Write "Goé." in four tokens, two of which are parts of a character."""
    yield STARTED
    wants_tokens = request.top_logprobs is not None
    if (start := request.scored_from) is not None:
        places = range(start, len(request.ids))
        prompt = [token("x", -2.0 if place else None) for place in places]
        yield GenerationChunk(text="Once upon", tokens=prompt)
    if request.most == 0:
        yield GenerationChunk(end=GenerationEnd(reason="length", tokens=0))
        return
    pieces = [
        ("Go", [token("Go", -0.1)]),
        ("é", [token("\\xc3", -0.2, PART), token("\\xa9", -0.3, b"\xa9")]),
        (str(request.seed or "."), [token(".", -0.4)]),
    ]
    for text, tokens in pieces:
        yield GenerationChunk(text=text, tokens=tokens if wants_tokens else [])
    yield GenerationChunk(end=GenerationEnd(reason="stop", tokens=5, computed_in="float32"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a folder with a tokenizer service and a tokenizer; start it once for all tests."""
    home = tmp_path_factory.mktemp("desk")
    tokenizer_services.write_model(home / "base")
    with tokenizer_services.run_tokenizer_service(Settings(home=home)):
        yield home


@pytest.fixture(autouse=True)
def _tokenizer(home: Path, settings: Settings, engine: Engine) -> None:
    socket = tokenizer_service.socket_path
    socket(settings.home).symlink_to(socket(home))
    with unit_of_work(engine) as db:
        model = models.find_by_name(db, "starter")
        assert model is not None
        model.location = str(home / "base")


@pytest.fixture
def service(settings: Settings) -> Iterator[FakeInferenceService]:
    with run_inference_service(settings, answer) as running:
        yield running


def ask(client: TestClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = client.post(f"/v1/{path}", json=body)
    told: dict[str, Any] = response.json()
    assert response.status_code == 200, told
    return told


def stream(client: TestClient, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = client.post(f"/v1/{path}", json=body | {"stream": True})
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_chat_tokens_have_logprobs_bytes_and_alternatives(
    client: TestClient, service: FakeInferenceService
) -> None:
    told = ask(client, "chat/completions", ASKED | {"logprobs": True, "top_logprobs": 1})
    content = told["choices"][0]["logprobs"]["content"]

    assert [(one["token"], one["logprob"]) for one in content] == [
        ("Go", -0.1),
        ("\\xc3", -0.2),
        ("\\xa9", -0.3),
        (".", -0.4),
    ]
    assert b"".join(bytes(one["bytes"]) for one in content).decode() == "Goé."
    assert content[0]["top_logprobs"] == [{"token": "No", "bytes": [78, 111], "logprob": -0.5}]
    assert told["choices"][0]["logprobs"]["refusal"] is None
    assert service.requests[0].top_logprobs == 1


@pytest.mark.parametrize(
    ("given", "schema"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_schema", "json_schema": {"name": "any"}}, {"type": "object"}),
        (
            {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"enum": ["yes"]}, "strict": True},
            },
            {"enum": ["yes"]},
        ),
    ],
)
def test_response_format_becomes_schema_of_answer(
    client: TestClient,
    service: FakeInferenceService,
    given: dict[str, Any],
    schema: dict[str, Any] | None,
) -> None:
    ask(client, "chat/completions", ASKED | {"response_format": given})

    assert service.requests[0].json_schema == schema


def test_streamed_tokens_come_with_their_text(
    client: TestClient, service: FakeInferenceService
) -> None:
    whole = ask(client, "chat/completions", ASKED | {"logprobs": True})
    chunks = stream(client, "chat/completions", ASKED | {"logprobs": True})
    choices = [chunk["choices"][0] for chunk in chunks]

    assert [choice["delta"].get("content") for choice in choices] == ["", "Go", "é", ".", None]
    joined = [one for choice in choices for one in (choice["logprobs"] or {}).get("content", [])]
    assert joined == whole["choices"][0]["logprobs"]["content"]
    assert service.requests[1].top_logprobs == 0


def test_answers_have_no_logprobs_unless_wanted(
    client: TestClient, service: FakeInferenceService
) -> None:
    told = ask(client, "chat/completions", ASKED)

    assert told["choices"][0]["logprobs"] is None
    assert told["choices"][0]["message"]["content"] == "Goé."
    assert service.requests[0].top_logprobs is None


@pytest.mark.usefixtures("service")
def test_completion_tokens_have_offsets(client: TestClient) -> None:
    (choice,) = ask(client, "completions", TEXT | {"logprobs": 1})["choices"]

    assert choice["text"] == "Goé."
    assert choice["logprobs"] == {
        "tokens": ["Go", "bytes:\\xc3", "bytes:\\xa9", "."],
        "token_logprobs": [-0.1, -0.2, -0.3, -0.4],
        "top_logprobs": [
            {"No": -0.5, "Go": -0.1},
            {"No": -0.5, "bytes:\\xc3": -0.2},
            {"No": -0.5, "bytes:\\xa9": -0.3},
            {"No": -0.5, ".": -0.4},
        ],
        "text_offset": [0, 2, 2, 3],
    }


@pytest.mark.usefixtures("service")
def test_offsets_go_on_from_one_streamed_piece_to_the_next(client: TestClient) -> None:
    chunks = stream(client, "completions", TEXT | {"logprobs": 0})
    told = [chunk["choices"][0]["logprobs"] for chunk in chunks]

    offsets = [offset for one in told if one for offset in one["text_offset"]]
    assert offsets == [0, 2, 2, 3]


def test_repeated_prompt_is_scored(client: TestClient, service: FakeInferenceService) -> None:
    told = ask(client, "completions", TEXT | {"logprobs": 1, "echo": True, "max_tokens": 0})
    (choice,), prompt = told["choices"], told["usage"]["prompt_tokens"]

    assert (choice["text"], choice["finish_reason"]) == ("Once upon", "length")
    assert choice["logprobs"]["token_logprobs"] == [None, *[-2.0] * (prompt - 1)]
    assert choice["logprobs"]["top_logprobs"][0] is None
    assert told["usage"]["completion_tokens"] == 0
    assert (service.requests[0].scored_from, service.requests[0].most) == (0, 0)


@pytest.mark.usefixtures("service")
def test_answer_follows_repeated_prompt(client: TestClient) -> None:
    body = TEXT | {"logprobs": 1, "echo": True, "max_tokens": 9}
    told = ask(client, "completions", body)
    (choice,), prompt = told["choices"], told["usage"]["prompt_tokens"]
    pieces = [chunk["choices"][0]["text"] for chunk in stream(client, "completions", body)]

    assert choice["text"] == "Once uponGoé." == "".join(pieces)
    assert len(choice["logprobs"]["tokens"]) == prompt + 4
    assert choice["logprobs"]["text_offset"][prompt:] == [9, 11, 11, 12]
    assert max(choice["logprobs"]["text_offset"][:prompt]) <= 9


def test_prompt_is_repeated_without_scores(
    client: TestClient, service: FakeInferenceService
) -> None:
    told = ask(client, "completions", TEXT | {"echo": True})

    assert told["choices"][0]["text"] == "Once uponGoé."
    assert service.requests[0].scored_from is None


def test_each_answer_has_its_own_seed(client: TestClient, service: FakeInferenceService) -> None:
    told = ask(client, "chat/completions", ASKED | {"n": 3, "seed": 7})

    answers = [choice["message"]["content"] for choice in told["choices"]]
    assert answers == ["Goé7", "Goé8", "Goé9"]
    assert [choice["index"] for choice in told["choices"]] == [0, 1, 2]
    assert told["usage"]["completion_tokens"] == 15
    assert sorted(request.seed or 0 for request in service.requests) == [7, 8, 9]


def test_streamed_answers_are_told_apart(client: TestClient, service: FakeInferenceService) -> None:
    body = ASKED | {"n": 2, "stream_options": {"include_usage": True}}
    chunks = stream(client, "chat/completions", body)

    for index in range(2):
        mine = [c["choices"][0] for c in chunks[:-1] if c["choices"][0]["index"] == index]
        assert "".join(choice["delta"].get("content", "") for choice in mine) == "Goé."
        assert mine[-1]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["completion_tokens"] == 10
    assert [request.seed for request in service.requests] == [None, None]


def test_equal_answers_are_generated_once(
    client: TestClient, service: FakeInferenceService
) -> None:
    told = ask(client, "chat/completions", ASKED | {"n": 8, "temperature": 0})

    assert {choice["message"]["content"] for choice in told["choices"]} == {"Goé."}
    assert told["usage"]["completion_tokens"] == 40
    assert len(service.requests) == 1


def test_given_answer_is_scored(client: TestClient, service: FakeInferenceService) -> None:
    ask(client, "chat/completions", ASKED)
    body = ASKED | {"logprobs": True, "x_studio": {"score": "Four."}}
    told = ask(client, "chat/completions", body)
    (choice,) = told["choices"]
    prompt, scored = service.requests

    assert (choice["message"]["content"], choice["finish_reason"]) == ("Four.", "stop")
    # One token for each character, and the one that ends the turn.
    assert len(choice["logprobs"]["content"]) == 6
    assert told["usage"]["prompt_tokens"] == len(prompt.ids) == scored.scored_from
    assert told["usage"]["completion_tokens"] == 6
    assert scored.ids[: len(prompt.ids)] == prompt.ids
    assert scored.ids[-1] in prompt.stops
    assert scored.most == 0
    pieces = stream(client, "chat/completions", body)
    assert "".join(one["choices"][0]["delta"].get("content", "") for one in pieces) == "Four."


@pytest.mark.parametrize(
    ("path", "extra", "param"),
    [
        ("chat/completions", {"x_studio": {"score": "Four."}}, "logprobs"),
        ("chat/completions", {"logprobs": True, "x_studio": {"score": ""}}, "x_studio.score"),
        ("chat/completions", {"x_studio": {"scores": "Four."}}, "scores"),
        ("chat/completions", {"top_logprobs": 3}, "top_logprobs"),
        ("chat/completions", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("chat/completions", {"n": 9}, "n"),
        ("chat/completions", {"n": 0}, "n"),
        ("chat/completions", {"max_tokens": 0}, "max_tokens"),
        ("chat/completions", {"echo": True}, "echo"),
        ("completions", {"logprobs": 6}, "logprobs"),
        ("completions", {"max_tokens": 0}, "max_tokens"),
        ("completions", {"top_logprobs": 1}, "top_logprobs"),
    ],
)
def test_bad_numbers_of_logprobs_and_answers_are_refused(
    client: TestClient, path: str, extra: dict[str, Any], param: str
) -> None:
    body = ASKED if path == "chat/completions" else TEXT

    status, _code, named = error(client.post(f"/v1/{path}", json=body | extra))

    assert (status, named) == (400, param)


def test_failure_of_one_answer_fails_the_request(client: TestClient, settings: Settings) -> None:
    def fails(request: GenerationRequest) -> Iterator[GenerationChunk]:
        yield from failed("too_large", "Too long.") if request.seed == 8 else answer(request)

    with run_inference_service(settings, fails):
        response = client.post("/v1/chat/completions", json=ASKED | {"n": 2, "seed": 7})

    assert error(response)[0] == 413
