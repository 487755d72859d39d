"""An endpoint of others beside a model of the studio, in a real browser."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.runs.test_playground import ask, column, opened, pick, query_of, reply
from tests.support.live_studio import Studio, stop_everything
from tests.web.playground.streaming_endpoint import (
    Reply,
    StreamingEndpoint,
    chunk,
    failed,
    run_endpoint,
    said,
)

pytestmark = pytest.mark.e2e

KEY = "sk-nobodysees"
TOKEN = {"token": "Blue.", "logprob": -0.5, "top_logprobs": [{"token": "Red.", "logprob": -1}]}


def go_on() -> Iterator[bytes]:
    """Write slowly, and without end."""
    while True:
        yield chunk(content="on ")
        time.sleep(0.02)


def answer(request: dict[str, Any]) -> Reply:
    text = request["messages"][-1]["content"]
    if text == "Fail":
        return failed(429, "Slow down", {"Retry-After": "20"})
    if text == "Go on":
        return Reply(go_on())
    if "seed" in request:
        return failed(400, "seed is not supported")
    return Reply([chunk(content="Blue.", logprobs={"content": [TOKEN]}), *said("").pieces])


@pytest.fixture(scope="module")
def endpoint() -> Iterator[StreamingEndpoint]:
    with run_endpoint(answer) as running:
        yield running


@pytest.fixture(scope="module")
def studio(
    endpoint: StreamingEndpoint, starter_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Studio]:
    """Start a studio that knows the endpoint."""
    listed = [{"name": "large", "url": endpoint.url, "model": "large", "key": KEY}]
    studio = Studio.copied(starter_home, tmp_path_factory.mktemp("shared") / "home")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("STUDIO_ENDPOINTS", json.dumps(listed))
        environment.setenv("STUDIO_ALLOW_INTERNAL_ADDRESSES", "true")
        studio.start()
    yield studio
    stop_everything(studio)


def test_endpoint_answers_beside_a_model_of_the_studio(
    page: Page, endpoint: StreamingEndpoint
) -> None:
    opened(page, "?model=model:1&max_tokens=6&temperature=0.5&seed=3")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_role("button", name="Add a model").click()
    pick(page, "large", re.compile("large"))
    expect(column(page, 2)).to_contain_text("Prompts are sent to 127.0.0.1, outside of this studio")
    assert ("model", "endpoint:large") in query_of(page)
    ask(page, "Which colour has the sky?")

    second = reply(page, 2)
    expect(second.locator("[data-answer]")).to_have_text("Blue.")
    expect(second.locator("[data-source]")).to_have_text(
        "large-2026 at 127.0.0.1 · no seed · without seed, which it refuses"
    )
    expect(reply(page, 1).locator("[data-source]")).to_contain_text("seed 3")
    second.get_by_role("button", name="Token probabilities").click()
    expect(second.locator(".heat span")).to_have_text(["Blue."])
    ask(page, "Are you sure?")
    assert [one["content"] for one in endpoint.asked[-1]["messages"]] == [
        "Which colour has the sky?",
        "Blue.",
        "Are you sure?",
    ]
    assert set(endpoint.keys) == {f"Bearer {KEY}"}
    assert KEY not in page.content()
    assert not [url for url in asked if url.startswith(endpoint.url)]


def test_stopping_and_failures(page: Page, endpoint: StreamingEndpoint) -> None:
    opened(page, "?model=endpoint:large")
    ask(page, "Fail")
    expect(reply(page, 1)).to_contain_text("takes no more requests now: Slow down")
    expect(reply(page, 1)).to_contain_text("Try again in 20 s.")
    field = page.get_by_role("textbox", name="Message to all models")
    field.fill("Go on")
    field.press("Enter")
    expect(reply(page, 1).locator("[data-answer]")).to_contain_text("on on")
    page.get_by_role("button", name="Stop").click()
    expect(reply(page, 1).get_by_text("Stopped.")).to_be_visible()
    assert endpoint.hung_up.wait(60)
