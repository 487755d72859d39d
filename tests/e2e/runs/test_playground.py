"""Models side by side in the playground: the real inference process, in a real browser."""

import json
import math
import re
import subprocess
from urllib.parse import parse_qsl, urlsplit

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.live_studio import QUICK, ApiClient, Studio, get_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def finished(studio: Studio) -> int:
    recipe = QUICK | {"checkpoints": {"save_steps": 15, "keep_after_success": True}}
    sent = studio.api.post("/runs", json={"name": "plurals", "recipe": recipe})
    number: int = sent.raise_for_status().json()["id"]
    wait_until(lambda: get_run(studio, number)["status"] == "succeeded")
    return number


@pytest.fixture
def playground(page: Page, finished: int) -> Page:
    """Open the page with the base model of a run, and its result."""
    return opened(page, f"?model=base:{finished}&model=run:{finished}&max_tokens=12")


def opened(page: Page, query: str) -> Page:
    page.goto(f"/playground{query}")
    expect(page.locator(".chat[data-booted=done]")).to_be_visible()
    return page


def column(page: Page, number: int) -> Locator:
    return page.get_by_role("region", name=f"Column {number}")


def reply(page: Page, number: int) -> Locator:
    return page.get_by_role("group", name=f"Column {number}").last


def ask(page: Page, prompt: str) -> None:
    """Send a message, and wait until all columns have answered."""
    field = page.get_by_role("textbox", name="Message to all models")
    field.fill(prompt)
    field.press("Enter")
    expect(page.locator(".chat-turn").last).to_contain_text(prompt)
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()


def answer(page: Page, number: int) -> str:
    return reply(page, number).locator("[data-answer]").inner_text()


def pick(page: Page, search: str, name: str | re.Pattern[str]) -> None:
    """Choose a model in the list."""
    page.get_by_role("searchbox", name="Search by name or run number").fill(search)
    page.locator("#choices").get_by_role("button", name=name).first.click()
    expect(page.get_by_role("dialog")).to_be_hidden()


def query_of(page: Page) -> list[tuple[str, str]]:
    return parse_qsl(urlsplit(page.url).query)


def test_columns_answer_in_turn_and_say_what_gave_each_answer(
    playground: Page, finished: int
) -> None:
    page = playground
    states = page.locator("[data-state]").filter(has_text="Waits for the answer of Column 1")
    field = page.get_by_role("textbox", name="Message to all models")
    field.fill("What is two plus two?")
    field.press("Enter")
    expect(states.or_(reply(page, 2).locator("[data-figures]", has_text="token"))).to_be_visible()
    for number in (1, 2):
        expect(reply(page, number).locator("[data-figures]")).to_contain_text("tokens/s")

    first, second = (reply(page, number).locator("[data-source]") for number in (1, 2))
    expect(first).to_have_text(
        re.compile(r"^starter · computed in float32 · chat template \w{8} · most likely tokens$")
    )
    expect(second).to_contain_text(f"starter with the adapter of run {finished} · final model")
    said = page.get_by_role("status").filter(has_text="Column 2:")
    expect(said).to_have_text(re.compile("Column 1: .*Column 2: ", re.DOTALL))


def test_models_are_chosen_from_list_and_answer_beside_each_other(
    page: Page, finished: int
) -> None:
    opened(page, f"?model=base:{finished}&max_tokens=8")
    ask(page, "Who are you?")
    page.get_by_role("button", name="Add a model").click()
    pick(page, "plur", re.compile(r"Checkpoint at step \d+"))
    expect(reply(page, 2)).to_contain_text("Not asked yet.")
    reply(page, 2).get_by_role("button", name="Ask").click()
    expect(reply(page, 2).locator("[data-source]")).to_contain_text("checkpoint of step")

    column(page, 1).get_by_role("button", name="Choose another model").click()
    pick(page, f"#{finished}", re.compile("Final model"))
    expect(column(page, 1).get_by_role("button", name="Choose")).to_contain_text("final model")
    assert next(value for name, value in query_of(page) if name == "model") == f"run:{finished}"
    column(page, 2).get_by_role("button", name="Remove this column").click()
    expect(page.locator(".column")).to_have_count(1)
    expect(page.locator(".chat-reply")).to_have_count(1)
    assert [name for name, _value in query_of(page)].count("model") == 1


def test_number_formats_of_one_model_side_by_side(page: Page) -> None:
    opened(page, "?model=model:1&model=model:1&model=model:1&format.2=bfloat16&max_tokens=6")
    formats: list[str] = []
    page.on(
        "request",
        lambda request: (
            formats.append((request.post_data_json or {})["format"])
            if request.url.endswith("/answers")
            else None
        ),
    )
    ask(page, "Who are you?")
    assert formats == ["", "", "bfloat16"]  # Each is loaded only once.

    expect(reply(page, 1).locator("[data-source]")).not_to_contain_text("bfloat16")
    expect(reply(page, 2).locator("[data-source]")).to_contain_text(
        "weights in bfloat16 · computed in float32"
    )
    column(page, 2).get_by_text("Format, settings, code").click()
    column(page, 2).get_by_label("Weights").select_option("float16")
    expect(column(page, 2).get_by_label("Weights")).to_have_value("float16")
    assert ("format.2", "float16") in query_of(page)


def test_column_with_settings_of_its_own(playground: Page) -> None:
    page = playground
    column(page, 2).get_by_text("Format, settings, code").click()
    column(page, 2).get_by_role("button", name="Own settings").click()
    own = column(page, 2).get_by_label("Max tokens")
    expect(own).to_have_value("12")
    own.fill("1")
    own.blur()
    ask(page, "Tell me a story about a fox.")
    expect(reply(page, 1).locator("[data-figures]")).not_to_have_text("1 token")
    expect(reply(page, 2).locator("[data-figures]")).to_have_text("1 token")
    assert {("max_tokens", "12"), ("max_tokens.2", "1")} <= set(query_of(page))

    page.reload()
    expect(page.locator(".chat[data-booted=done]")).to_be_visible()
    column(page, 2).get_by_text("Format, settings, code").click()
    expect(own).to_have_value("1")
    own.fill("9999")
    page.get_by_role("textbox", name="Message to all models").fill("Hello?")
    page.keyboard.press("Enter")
    expect(page.locator(".chat-turn")).to_have_count(0)  # The value is shown as wrong.
    expect(own).to_be_focused()


def test_link_opens_same_state_and_asks_nothing(playground: Page) -> None:
    page = playground
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("textbox", name="Message to all models").fill("Why is the sky blue?")
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_text("Link copied. Opening it asks nothing.")).to_be_visible()
    link = page.evaluate("navigator.clipboard.readText()")
    sent: list[str] = []
    other = page.context.new_page()
    other.on("request", lambda request: sent.append(request.url))
    other.goto(link)
    expect(other.locator(".chat[data-booted=done]")).to_be_visible()

    field = other.get_by_role("textbox", name="Message to all models")
    expect(field).to_have_value("Why is the sky blue?")
    expect(other.locator(".column")).to_have_count(2)
    expect(other.locator(".chat-turn")).to_have_count(0)
    assert not [url for url in sent if url.endswith("/answers")]
    field.fill("word " * 2000)
    other.get_by_role("button", name="Copy link").click()
    expect(other.get_by_text("The prompt is too long for an address")).to_be_visible()
    assert len(other.evaluate("navigator.clipboard.readText()")) < 4096


def test_validation_row_is_asked_with_expected_answer_beside(playground: Page) -> None:
    page = playground
    page.locator(".chat-try").first.click()
    for number in (1, 2):
        expect(reply(page, number).locator(".judged")).to_have_text(re.compile("xpected"))
    expect(page.locator("[data-wanted]").last).to_contain_text("Expected")


def test_code_asks_the_same(playground: Page, finished: int) -> None:
    page = playground
    page.get_by_role("textbox", name="Message to all models").fill("Why is the sky blue?")
    column(page, 2).get_by_text("Format, settings, code").click()
    column(page, 2).get_by_role("button", name="Show code").click()
    dialog = page.get_by_role("dialog", name="The same question from a program")
    expect(dialog.locator("#question-as-curl")).to_contain_text("/v1/chat/completions")
    expect(dialog.locator("#question-as-openai")).to_contain_text("Why is the sky blue?")
    expect(dialog.locator("#question-as-openai")).to_contain_text(f"ft:starter:local::{finished}")
    command = dialog.locator("#question-as-curl").inner_text()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.get_by_role("textbox", name="Message to all models").press("Enter")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    expect(reply(page, 2).locator("[data-figures]")).not_to_be_empty()
    ran = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True)
    (choice,) = json.loads(ran.stdout)["choices"]
    assert choice["message"]["content"] == answer(page, 2)


def test_texts_are_continued_without_chat_template(page: Page) -> None:
    opened(page, "?model=model:1&mode=text&max_tokens=6")
    page.get_by_role("textbox", name="Message to all models").fill("Once upon a")
    with page.expect_request("**/answers") as asked:
        page.get_by_role("button", name="Continue the text").click()

    assert (asked.value.post_data_json or {})["is_text"] is True
    expect(reply(page, 1).locator("[data-source]")).to_contain_text("no chat template")


def test_escape_stops_all_columns_and_each_is_asked_again(playground: Page) -> None:
    page = playground
    page.locator("[data-settings] > summary").click()
    page.locator("[data-settings]").get_by_label("Max tokens").fill("4096")
    page.locator("[data-settings]").get_by_label("Temperature").fill("2")
    field = page.get_by_role("textbox", name="Message to all models")
    field.fill("Tell me a story.")
    field.press("Enter")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    field.press("Escape")
    for number in (1, 2):
        expect(reply(page, number).get_by_text("Stopped.")).to_be_visible()

    page.locator("[data-settings]").get_by_label("Max tokens").fill("1")
    reply(page, 2).get_by_role("button", name="Retry").click()
    expect(reply(page, 2).locator("[data-figures]")).to_have_text("1 token")
    expect(reply(page, 1).get_by_text("Stopped.")).to_be_visible()


def test_probabilities_of_tokens_are_those_of_the_api(
    page: Page, studio: Studio, finished: int
) -> None:
    """A press shows how likely the model found each token; a further one hides it."""
    playground = opened(page, f"?model=run:{finished}&max_tokens=12")
    ask(playground, "What is the plural of cat?")
    button = reply(playground, 1).get_by_role("button", name="Token probabilities")
    button.click()
    tokens = reply(playground, 1).locator(".heat span")
    expect(tokens.first).to_be_visible()
    expect(button).to_have_attribute("aria-pressed", "true")
    shown = tokens.all_text_contents()
    title = tokens.first.get_attribute("title") or ""

    model = f"ft:starter:local::{finished}"
    asked = {
        "model": model,
        "messages": [{"role": "user", "content": "What is the plural of cat?"}],
        "logprobs": True,
        "x_studio": {"score": answer(playground, 1)},
    }
    told = (
        ApiClient(f"{studio.url}/v1", studio.api.headers)
        .post("/chat/completions", json=asked)
        .raise_for_status()
        .json()
    )
    entries = told["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == shown
    share = 100 * math.exp(entries[0]["logprob"])
    assert float(title.split(" ")[0]) == pytest.approx(share, rel=0.01)
    button.click()
    expect(tokens.first).to_be_hidden()
