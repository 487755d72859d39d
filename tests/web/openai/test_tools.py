"""Functions that a model may call, in OpenAI's shapes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from tokenizers.pre_tokenizers import ByteLevel

from studio.db.session import unit_of_work
from studio.protocols.inference_service import (
    GenerationChunk,
    GenerationEnd,
    GenerationRequest,
    ToolCall,
)
from studio.services.models import models
from studio.settings import Settings
from tests.support import tokenizer_services
from tests.support.inference_services import STARTED, FakeInferenceService, run_inference_service
from tests.web.openai import test_answers
from tests.web.openai.test_answers import ask, stream
from tests.web.openai.test_files import ASKED
from tests.web.openai.test_jobs import error

home, _tokenizer = test_answers.home, test_answers._tokenizer

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content }}"
    '{% for call in message.tool_calls or [] %}{{ \'<tool_call>{"name": "\' + call.function.name }}'
    "{{ '\", \"arguments\": ' }}{{ call.function.arguments | tojson }}{{ '}</tool_call>' }}"
    "{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
}
HISTORY = [
    *ASKED["messages"],
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "Rain.", "tool_call_id": "call_1"},
]


def answer(request: GenerationRequest) -> Iterator[GenerationChunk]:
    """Say a word, and call each function that may be called."""
    yield STARTED
    yield GenerationChunk(text="Well.")
    calls = [ToolCall(name=name, arguments='{"city": "Rome"}') for name in request.tools]
    yield GenerationChunk(end=GenerationEnd(reason="stop", tokens=9, calls=calls))


@pytest.fixture
def service(
    settings: Settings,
    engine: Engine,
    tmp_path: Path,
    _tokenizer: None,
) -> Iterator[FakeInferenceService]:
    tokenizer_services.write_model(tmp_path / "tools", TEMPLATE)
    with unit_of_work(engine) as db:
        model = models.find_by_name(db, "starter")
        assert model is not None
        model.location = str(tmp_path / "tools")
    with run_inference_service(settings, answer) as running:
        yield running


def text_of(ids: list[int]) -> str:
    """Read tokens of single bytes."""
    alphabet = sorted(ByteLevel.alphabet())
    special = dict(enumerate(tokenizer_services.SPECIAL, len(alphabet)))
    text = "".join(special.get(one) or alphabet[one] for one in ids)
    return text.replace("Ġ", " ").replace("Ċ", "\n")


def test_answer_calls_functions(client: TestClient, service: FakeInferenceService) -> None:
    told = ask(client, "chat/completions", ASKED | {"tools": [WEATHER, NOW]})
    (choice,) = told["choices"]

    calls = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "Well.")
    assert [call["function"]["name"] for call in calls] == ["weather", "now"]
    assert {call["type"] for call in calls} == {"function"}
    assert len({call["id"] for call in calls}) == 2
    request = service.requests[0]
    assert request.tools == {
        "weather": WEATHER["function"]["parameters"],
        "now": {"additionalProperties": False},
    }
    assert not request.must_call


def test_prompt_shows_functions_and_ends_before_the_example(
    client: TestClient, service: FakeInferenceService
) -> None:
    ask(client, "chat/completions", ASKED | {"messages": HISTORY, "tools": [WEATHER]})

    request = service.requests[0]
    prompt = text_of(request.ids)
    assert prompt.startswith('{"type": "function", "function": {"name": "weather"')
    assert '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}' in prompt
    assert prompt.endswith("<|im_start|>tool\nRain.<|im_end|>\n<|im_start|>assistant\n")
    assert text_of(request.call_example).startswith(
        '<tool_call>{"name": "studio_example", "arguments": {"studio_key": "studio_value"}}'
    )
    assert request.stops != []


def test_streamed_call_comes_as_one_piece(
    client: TestClient, service: FakeInferenceService
) -> None:
    pieces = stream(client, "chat/completions", ASKED | {"tools": [WEATHER]})

    *_before, called, last = [piece["choices"][0] for piece in pieces]
    (call,) = called["delta"]["tool_calls"]
    assert (call["index"], json.loads(call["function"]["arguments"])) == (0, {"city": "Rome"})
    assert (last["delta"], last["finish_reason"]) == ({}, "tool_calls")
    assert service.requests[0].tools != {}


@pytest.mark.parametrize(
    ("choice", "names", "must_call"),
    [
        ("none", [], False),
        ("auto", ["weather", "now"], False),
        ("required", ["weather", "now"], True),
        ({"type": "function", "function": {"name": "now"}}, ["now"], True),
    ],
)
def test_tool_choice_decides_what_may_be_called(
    client: TestClient,
    service: FakeInferenceService,
    choice: object,
    names: list[str],
    must_call: bool,  # noqa: FBT001 -- a parameter
) -> None:
    ask(client, "chat/completions", ASKED | {"tools": [WEATHER, NOW], "tool_choice": choice})

    request = service.requests[0]
    assert (list(request.tools), request.must_call) == (names, must_call)


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"tools": [NOW, NOW]}, "tools"),
        ({"tools": [NOW], "response_format": {"type": "json_object"}}, "response_format"),
        (
            {"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
        ),
        ({"tools": [NOW], "logprobs": True, "x_studio": {"score": "No."}}, "x_studio.score"),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "a", "function": {"name": "now", "arguments": "[]"}}],
                    }
                ]
            },
            "messages.0.tool_calls",
        ),
    ],
)
def test_tools_that_do_not_go_together_are_rejected(
    client: TestClient, extra: dict[str, Any], param: str
) -> None:
    assert error(client.post("/v1/chat/completions", json=ASKED | extra)) == (400, "invalid", param)


@pytest.mark.usefixtures("_tokenizer")
def test_template_without_tools_is_named(client: TestClient, settings: Settings) -> None:
    with run_inference_service(settings, answer):
        response = client.post("/v1/chat/completions", json=ASKED | {"tools": [NOW]})

    assert response.status_code == 400
    told = response.json()["error"]
    assert "does not render tool definitions" in told["message"]
    assert "Use a model whose chat template shows functions" in told["message"]
    assert told["param"] == "tools"
