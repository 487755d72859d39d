"""Answers in JSON, and answers that call functions: what the playground asks, shows and shares."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.protocols.inference_service import (
    GenerationChunk,
    GenerationEnd,
    GenerationRequest,
    ToolCall,
)
from studio.services.models import models
from studio.settings import Settings
from tests.support import factories, tokenizer_services
from tests.support.inference_services import STARTED, run_inference_service, words
from tests.support.page_reader import parse_page
from tests.web.openai.test_tools import TEMPLATE, WEATHER, text_of
from tests.web.playground import test_playground
from tests.web.playground.test_playground import QUESTION, address, ask, code, raw_text

tokenizer_home, base = test_playground.tokenizer_home, test_playground.base

SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer"}}}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
}
HISTORY = [
    *QUESTION,
    {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL]},
    {"role": "tool", "content": "Rain.", "tool_call_id": "call_1"},
]


@pytest.fixture
def with_tools(base: Path) -> None:
    """Let the chat template of the base model show functions."""
    tokenizer_services.write_model(base, TEMPLATE)


def call_weather(request: GenerationRequest) -> Iterable[GenerationChunk]:
    yield STARTED
    calls = [ToolCall(name=name, arguments='{"city": "Rome"}') for name in request.tools]
    yield GenerationChunk(end=GenerationEnd(reason="stop", tokens=9, calls=calls))


def ask_once(
    client: TestClient,
    settings: Settings,
    answer: Any = lambda _request: words("{}"),  # noqa: ANN401 -- how the service answers
    **changes: Any,  # noqa: ANN401 -- any field of the request
) -> tuple[dict[str, Any], GenerationRequest]:
    """Ask the base model. Return how its answer ended, and what the service was sent."""
    with run_inference_service(settings, answer) as service:
        end: dict[str, Any] = ask(client, "model:1", **changes)[-1]
    assert "end" in end, end
    return end["end"], service.requests[0]


@pytest.mark.usefixtures("base")
@pytest.mark.parametrize(
    ("format_name", "schema"), [("text", None), ("json", {"type": "object"}), ("schema", SCHEMA)]
)
def test_answer_follows_the_chosen_format(
    client: TestClient, settings: Settings, format_name: str, schema: dict[str, Any] | None
) -> None:
    _end, sent = ask_once(
        client, settings, answer_format=format_name, json_schema=json.dumps(SCHEMA)
    )

    assert sent.json_schema == schema


@pytest.mark.usefixtures("with_tools")
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_answer_calls_functions(client: TestClient, settings: Settings, choice: str) -> None:
    functions = json.dumps([WEATHER])
    end, sent = ask_once(
        client, settings, call_weather, functions=functions, function_choice=choice, expected="4"
    )
    (call,) = end["calls"]

    assert call["function"] == {"name": "weather", "arguments": '{"city": "Rome"}'}
    assert call["id"]
    assert end["is_right"] is None  # It has only begun.
    assert sent.must_call is (choice == "required")
    assert text_of(sent.ids).startswith('{"type": "function", "function": {"name": "weather"')


@pytest.mark.usefixtures("with_tools")
def test_functions_that_may_not_be_called_are_not_shown(
    client: TestClient, settings: Settings
) -> None:
    _end, sent = ask_once(client, settings, functions=json.dumps([WEATHER]), function_choice="none")

    assert sent.tools == {}
    assert "weather" not in text_of(sent.ids)


@pytest.mark.usefixtures("with_tools")
def test_model_goes_on_after_the_result(client: TestClient, settings: Settings) -> None:
    end, sent = ask_once(
        client,
        settings,
        lambda _request: words("It rains."),
        messages=HISTORY,
        functions=json.dumps([WEATHER]),
    )

    assert end["calls"] == []
    assert text_of(sent.ids).endswith(
        'Let me see.<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
        "<|im_end|>\n<|im_start|>tool\nRain.<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.usefixtures("base")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answer_format": "schema"}, "The JSON schema is empty. Write it in the settings."),
        ({"answer_format": "schema", "json_schema": "{"}, "The JSON schema is not valid JSON: "),
        ({"answer_format": "schema", "json_schema": "[" * 100_000}, "The JSON schema is not valid"),
        ({"answer_format": "schema", "json_schema": "[]"}, "response_format.json_schema.schema: "),
        ({"functions": "[{}"}, "The list of functions is not valid JSON: "),
        ({"functions": '{"name": "x"}'}, "tools: Must be a list"),
        ({"functions": '[{"type": "function"}]'}, "tools.0.function: "),
        ({"functions": json.dumps([WEATHER] * 2)}, "Two functions have the same name."),
        ({"functions": json.dumps([WEATHER])}, "or send no tools."),  # Its template has none.
        (
            {"functions": json.dumps([WEATHER]), "answer_format": "json"},
            "An answer cannot both follow a JSON schema and call tools.",
        ),
        ({"answer_format": "json", "is_text": True}, "A text is continued without a format"),
        ({"answer_format": "json", "answer_start": "{"}, "Only plain answers without functions"),
        ({"messages": [HISTORY[0], HISTORY[2]]}, "must come after the call"),
        ({"messages": [*HISTORY[:2], QUESTION[0] | {"tool_call_id": "x"}]}, "have a tool_call_id"),
    ],
)
def test_format_that_cannot_be_followed_is_explained(
    client: TestClient, changes: dict[str, Any], message: str
) -> None:
    (event,) = ask(client, "model:1", **changes)

    assert message in f"{event['error']['message']} {event['error']['hint']}"


@pytest.mark.usefixtures("base")
def test_address_holds_format_and_functions(client: TestClient) -> None:
    schema = json.dumps(SCHEMA, indent=1)
    query = {
        "model": ["model:1", "model:1"],
        "answer_format": "schema",
        "json_schema": schema,
        "functions.2": '[{"<b>"',  # also what is wrong: it is shown as it was typed
        "function_choice.2": "required",
        "answer_format.2": "text",
        "json_schema.2": "",
    }
    page = parse_page(client.get(address(**query)).text)
    second = page.all("section", class_="column")[1]

    def chosen(where: Any, identifier: str) -> str:  # noqa: ANN401 -- a node
        options = where.one("select", id=identifier).all("option")
        return next(
            (one.attributes["value"] for one in options if "selected" in one.attributes), ""
        )

    assert raw_text(page.one("textarea", id="chat-schema")) == schema
    assert chosen(page, "chat-format") == "schema"
    assert raw_text(second.one("textarea", id="own-c2-functions")) == '[{"<b>"'
    assert chosen(second, "own-c2-choice") == "required"
    assert chosen(second, "own-c2-format") == "text"
    assert raw_text(second.one("textarea", id="own-c2-schema")) == ""
    wrong = client.get("/playground?answer_format=xml")
    assert "answer_format in this address has an invalid value" in parse_page(wrong.text).text


@pytest.mark.usefixtures("base")
def test_code_holds_format_and_functions(client: TestClient) -> None:
    page = code(
        client, "model:1", messages=HISTORY, functions=json.dumps([WEATHER]), function_choice="none"
    )
    curl, python = (raw_text(page.one(id=f"question-as-{name}")) for name in ("curl", "openai"))
    body = json.loads(curl[curl.index("{") : curl.rindex("}") + 1])

    assert body["messages"] == HISTORY
    assert (body["tools"], body["tool_choice"]) == ([WEATHER], "none")
    compile(python, "code", "exec")
    assert python.endswith("print(answer.choices[0].message)\n")
    schema = code(client, "model:1", answer_format="schema", json_schema=json.dumps(SCHEMA))
    assert "'type': 'json_schema'" in raw_text(schema.one(id="question-as-openai"))
    wrong = code(client, "model:1", functions="[").text
    assert "The list of functions is not valid JSON" in wrong


def test_run_that_formats_turns_by_itself_has_functions_too(
    client: TestClient, engine: Engine, settings: Settings, base: Path
) -> None:
    """The recipe's chat template renders functions, not that of the base model."""
    with unit_of_work(engine) as db:
        run = factories.make_finished_run(db, "own", data={"chat_template": "chatml"})
        folder = test_playground.write_files(settings, run, base)
        location = models.get(db, 1).location
    tokenizer_services.write_model(folder.artifacts)
    with run_inference_service(settings, call_weather) as service:
        events = ask(client, "base:1", functions=json.dumps([WEATHER]))

    assert events[-1]["end"]["calls"], events
    assert service.requests[0].model in {str(base), location}
    assert "Call a function by its name" in text_of(service.requests[0].ids)
    assert events[-1]["source"]["template"]
