"""Answers in JSON and calls of functions in the playground: the real inference process."""

import json
import re
import shutil
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Locator, Page, Request, expect

from tests.e2e.runs.test_playground import answer, ask, column, opened, query_of, reply
from tests.support.live_studio import Studio
from tests.training.models.test_tool_calls import TEMPLATES

pytestmark = pytest.mark.e2e

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}


@pytest.fixture(scope="module")
def tooled(studio: Studio, tmp_path_factory: pytest.TempPathFactory) -> int:
    """Add a model whose chat template shows functions. Return its number."""
    folder = tmp_path_factory.mktemp("models") / "tooled"
    shutil.copytree(studio.home / "models" / "starter", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATES["hermes"])
    source = {"kind": "folder", "path": str(folder)}
    added = studio.api.post("/models", json={"source": source, "name": "tooled"})
    number: int = added.raise_for_status().json()["id"]
    return number


def settings(page: Page) -> Locator:
    return page.locator("[data-settings]")


def sent_bodies(page: Page) -> list[dict[str, Any]]:
    """Return the bodies of all questions that the page asks from now on."""
    bodies: list[dict[str, Any]] = []

    def note(request: Request) -> None:
        if request.url.endswith("/answers"):
            bodies.append(request.post_data_json or {})

    page.on("request", note)
    return bodies


def test_answer_follows_a_schema_that_is_checked_as_it_is_left(page: Page) -> None:
    opened(page, "?model=model:1&max_tokens=64")
    page.locator("[data-settings] > summary").click()
    settings(page).get_by_label("Answer format").select_option("schema")
    field = settings(page).get_by_role("textbox", name="JSON schema")
    settings(page).locator("[data-json-field=json_schema] [data-example]").click()
    expect(field).to_have_value(re.compile('"is_sure"'))
    field.fill('{"type": "object",}')
    field.blur()
    problem = settings(page).get_by_text("This is not valid JSON:")
    expect(problem).to_be_visible()
    page.get_by_role("textbox", name="Message to all models").fill("A city?")
    page.keyboard.press("Enter")
    expect(field).to_be_focused()
    expect(page.locator(".chat-turn")).to_have_count(0)

    field.fill(json.dumps(SCHEMA))
    expect(problem).to_be_hidden()
    ask(page, "A city?")
    assert set(json.loads(answer(page, 1))) == {"city"}
    expect(reply(page, 1).get_by_role("button", name="Continue")).to_be_hidden()
    assert ("json_schema", json.dumps(SCHEMA)) in query_of(page)
    page.reload()
    expect(page.locator(".chat[data-booted=done]")).to_be_visible()
    page.locator("[data-settings] > summary").click()
    expect(field).to_have_value(json.dumps(SCHEMA))


def test_function_is_called_and_its_result_leads_on(page: Page, tooled: int) -> None:
    query = {
        "model": [f"model:{tooled}", "model:1"],
        "functions": json.dumps([WEATHER]),
        "function_choice": "required",
        "max_tokens": 64,
    }
    opened(page, f"?{urlencode(query, doseq=True)}")
    bodies = sent_bodies(page)
    ask(page, "How is the weather?")
    first = reply(page, 1)
    expect(first.locator("[data-call-name]")).to_have_text("weather")
    expect(first.locator("[data-call-arguments]")).to_have_text(
        re.compile(r'^\{\s+"city": "(Rome|Oslo)"\s+\}$')
    )
    expect(reply(page, 2)).to_contain_text("or send no tools.")
    expect(first.get_by_role("button", name="Token probabilities")).to_be_hidden()
    expect(first.get_by_role("group", name="Feedback on this answer")).to_be_hidden()

    page.locator("[data-settings] > summary").click()
    settings(page).get_by_label("Calls of functions").select_option("none")
    first.get_by_role("textbox", name="Result of weather").fill("Rain.")
    first.get_by_role("button", name="Send the result").click()
    expect(first.locator("[data-call-result]")).to_have_text("Rain.")
    expect(first.locator("[data-version]")).to_have_text("2 of 2")
    roles = [one["role"] for one in bodies[-1]["messages"]]
    assert roles == ["user", "assistant", "tool"]
    (call,) = bodies[-1]["messages"][1]["tool_calls"]
    assert bodies[-1]["messages"][2] == {
        "role": "tool",
        "content": "Rain.",
        "tool_call_id": call["id"],
    }

    # The answer that follows the result is part of the conversation; the call alone is not.
    said = answer(page, 1)
    ask(page, "And tomorrow?")
    asked = next(one for one in bodies if one["messages"][-1]["content"] == "And tomorrow?")
    assert [one["role"] for one in asked["messages"]] == [*roles, "assistant", "user"]
    assert asked["messages"][3]["content"] == said
    page.locator(".chat-turn").first.get_by_role("button", name="Previous version").click()
    expect(page.locator(".chat-turn").first.get_by_role("button", name="Send")).to_be_visible()
    ask(page, "And on Sunday?")
    (asked,) = [
        one
        for one in bodies
        if one["messages"][-1]["content"] == "And on Sunday?" and one["model"] == f"model:{tooled}"
    ]
    assert asked["messages"][0]["content"] == "And tomorrow?"


def test_column_has_functions_of_its_own_and_texts_have_none(page: Page, tooled: int) -> None:
    opened(page, f"?model=model:{tooled}&model=model:{tooled}&max_tokens=48")
    bodies = sent_bodies(page)
    column(page, 2).get_by_text("Format, settings, code").click()
    column(page, 2).get_by_role("button", name="Own settings").click()
    own = column(page, 2).get_by_role("textbox", name="Functions")
    own.fill(json.dumps([WEATHER, WEATHER]))
    own.blur()
    expect(column(page, 2).get_by_text("Two functions are named weather.")).to_be_visible()
    own.fill(json.dumps([WEATHER]))
    column(page, 2).get_by_label("Calls of functions").select_option("required")
    ask(page, "How is the weather?")
    expect(reply(page, 2).locator("[data-call-name]")).to_have_text("weather")
    expect(reply(page, 1).locator("[data-call-name]")).to_have_count(0)
    column(page, 2).get_by_role("button", name="Show code").click()
    dialog = page.get_by_role("dialog", name="The same question from a program")
    expect(dialog.locator("#question-as-curl")).to_contain_text('"tool_choice": "required"')
    page.keyboard.press("Escape")

    page.locator("[data-settings] > summary").click()
    settings(page).get_by_label("Models").select_option("text")
    expect(own).to_be_hidden()
    page.get_by_role("button", name="New chat").click()
    ask(page, "Once upon a")
    assert [one["functions"] for one in bodies] == ["", json.dumps([WEATHER]), "", ""]
