"""Endpoints of others as columns of the playground: chosen, asked through the studio, and named."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr
from sqlalchemy import Engine

from studio.settings import Settings
from studio.web.app import create_app
from tests.support.page_reader import parse_page
from tests.web.playground.streaming_endpoint import (
    Reply,
    StreamingEndpoint,
    chunk,
    failed,
    run_endpoint,
    said,
)
from tests.web.playground.test_playground import address, ask, code, column_heads, raw_text

KEY = "sk-nobodysees"
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}

Serve = Callable[[Callable[[dict[str, Any]], Reply]], Any]


def listed(url: str) -> SecretStr:
    return SecretStr(json.dumps([{"name": "large", "url": url, "model": "m-1", "key": KEY}]))


@pytest.fixture
def serve(engine: Engine, settings: Settings) -> Serve:
    """Serve an endpoint, and a studio that knows it."""

    @contextmanager
    def serving(
        reply: Callable[[dict[str, Any]], Reply],
    ) -> Iterator[tuple[StreamingEndpoint, TestClient]]:
        with run_endpoint(reply) as endpoint:
            known = {"endpoints": listed(endpoint.url), "allow_internal_addresses": True}
            yield endpoint, TestClient(create_app(engine, settings.model_copy(update=known)))

    return serving


def test_answer_streams_through_the_studio(serve: Serve) -> None:
    """No worker and no slot is needed."""
    with serve(lambda _request: said("Good ", "day \ud83d", "\ude00")) as (endpoint, client):
        events = ask(client, "endpoint:large", expected="Good day", temperature=0.5, seed=3)
    states = [event["state"] for event in events if "state" in event]
    source = events[-1]["source"]

    assert states == ["remote", "answering"]
    assert "".join(event.get("text", "") for event in events).startswith("Good day ")
    assert events[-1]["end"].items() >= {"tokens": 7, "is_cut": False, "calls": []}.items()
    assert (source["endpoint"], source["model"]) == ("127.0.0.1", "large-2026")
    assert (source["seed"], source["left_out"]) == (3, [])
    assert endpoint.keys == [f"Bearer {KEY}"]
    assert KEY not in json.dumps(events)
    assert endpoint.url not in json.dumps(events)


def test_endpoint_gets_format_functions_and_sampling(serve: Serve) -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": "{}"}}
    reply = Reply([chunk(tool_calls=[call]), chunk("tool_calls")])
    with serve(lambda _request: reply) as (endpoint, client):
        functions = json.dumps([WEATHER])
        events = ask(client, "endpoint:large", functions=functions, function_choice="required")
        ask(client, "endpoint:large", answer_format="json", stop=["."], max_tokens=5)

    assert events[-1]["end"]["calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    ]
    first, second = endpoint.asked
    assert (first["model"], first["tools"], first["tool_choice"]) == ("m-1", [WEATHER], "required")
    assert second["response_format"] == {"type": "json_object"}
    assert (second["stop"], second["max_tokens"], second["temperature"]) == (["."], 5, 0)
    assert "seed" not in second


@pytest.mark.parametrize(
    ("reply", "changes", "words"),
    [
        (failed(401, f"Wrong key {KEY}"), {}, "127.0.0.1 refused the studio's key: Wrong key ***"),
        (said("x"), {"is_text": True}, "only be asked for whole answers of a conversation"),
        (said("x"), {"answer_start": "x"}, "only be asked for whole answers of a conversation"),
        (said("x"), {"functions": "["}, "not valid JSON"),
        (said("x"), {"model": "endpoint:small"}, "There is no endpoint named small."),
        (said("x"), {"messages": [{"role": "user", "content": " "}]}, "The prompt is empty."),
    ],
)
def test_question_that_fails_is_explained(
    serve: Serve, reply: Reply, changes: dict[str, Any], words: str
) -> None:
    with serve(lambda _request: reply) as (_endpoint, client):
        events = ask(client, **{"model": "endpoint:large", **changes})

    assert words in events[-1]["error"]["message"]


def test_internal_address_is_refused(engine: Engine, settings: Settings) -> None:
    with run_endpoint(lambda _request: said("x")) as endpoint:
        known = settings.model_copy(update={"endpoints": listed(endpoint.url)})
        events = ask(TestClient(create_app(engine, known)), "endpoint:large")

    assert "127.0.0.1 is an internal address" in events[-1]["error"]["message"]
    assert endpoint.asked == []


def test_page_offers_endpoints_and_says_where_prompts_go(serve: Serve) -> None:
    with serve(lambda _request: said("x")) as (endpoint, client):
        page = client.get(address(model=["endpoint:large", "endpoint:small", "model:1"])).text
        offered = client.get("/playground/models?q=M-1").text
        others = client.get("/playground/models?q=zzz").text
        column = client.get("/playground/column?model=endpoint:large&key=c3").text
    first, second, third = column_heads(parse_page(page))

    assert "Prompts are sent to 127.0.0.1, outside of this studio." in first.text
    assert "There is no endpoint named small." in second.text
    assert "outside of this studio" not in third.text
    assert not first.all("select", **{"data-format": ""})
    (button,) = parse_page(offered).all("button")
    assert (button.attributes["data-pick"], button.text) == (
        "endpoint:large",
        "m-1 large · 127.0.0.1",
    )
    assert "endpoint:" not in others
    assert "outside of this studio" in column
    for text in (page, offered, column):
        assert KEY not in text
        assert endpoint.url not in text
    assert endpoint.asked == []  # Opening a page asks nothing.


def test_wrong_setting_is_shown_where_endpoints_are_chosen(
    engine: Engine, settings: Settings
) -> None:
    known = settings.model_copy(update={"endpoints": SecretStr(f"[{KEY}")})
    client = TestClient(create_app(engine, known))
    listed_models = client.get("/playground/models").text

    assert "The list of endpoints is wrong: this is not valid JSON." in listed_models
    assert "model:1" in listed_models
    assert "The list of endpoints is wrong" in client.get("/playground?model=endpoint:large").text
    assert KEY not in listed_models


def test_code_asks_the_endpoint_with_a_key_of_ones_own(serve: Serve) -> None:
    with serve(lambda _request: said("x")) as (endpoint, client):
        page = code(client, "endpoint:large")
        refused = code(client, "endpoint:large", is_text=True).text
    curl, python = (raw_text(page.one(id=f"question-as-{name}")) for name in ("curl", "openai"))

    assert f"{endpoint.url}/chat/completions" in curl
    assert '"Authorization: Bearer $OPENAI_API_KEY"' in curl
    assert f"base_url='{endpoint.url}'" in python
    compile(python, "code", "exec")
    assert KEY not in page.text
    assert "whole answers of a conversation" in refused


def test_probabilities_are_those_that_came_with_the_answer(serve: Serve) -> None:
    token = {"token": "Hi", "logprob": -1.5, "top_logprobs": [{"token": "Ho", "logprob": -0.1}]}
    reply = Reply([chunk(content="Hi", logprobs={"content": [token]}), chunk("stop")])
    body = {
        "model": "endpoint:large",
        "messages": [{"role": "user", "content": "?"}],
        "answer": "Hi",
    }
    with serve(lambda _request: reply) as (_endpoint, client):
        given = [one for event in ask(client, "endpoint:large") for one in event.get("tokens", [])]
        page = parse_page(client.post("/playground/scores", json=body | {"tokens": given}).text)
        none = client.post("/playground/scores", json=body).text

    (span,) = page.one("p", **{"class": "words heat"}).all("span")
    assert (span.text, span.attributes["data-mark"]) == ("Hi", "1")
    assert "This endpoint gave no probabilities with its answer." in none


def test_page_of_secrets_says_how_to_write_endpoints(client: TestClient) -> None:
    page = client.get("/settings/secrets").text
    refused = client.post("/settings/secrets/endpoints", data={"value": f'["{KEY}"]'}).text

    assert "https://api.example.com/v1" in parse_page(page).one(id="endpoints").text
    assert "The list of endpoints is wrong" in refused
    assert KEY not in refused
