"""Chat with a run that has just finished: the real inference process, in a real browser."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.live_studio import Studio, get_run, submit_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

LONG = 20_000
"""More steps than a test waits for."""


@pytest.fixture
def training(studio: Studio, finished: int) -> Iterator[int]:  # noqa: ARG001 -- it comes first
    """Give a run that trains until the test ends."""
    number = submit_run(studio, "endless", max_steps=LONG)
    wait_until(lambda: get_run(studio, number)["status"] == "running")
    yield number
    studio.api.post(f"/runs/{number}/cancel")
    wait_until(lambda: get_run(studio, number)["status"] == "cancelled")


def reply(page: Page, side: str) -> Locator:
    return page.locator(f".chat-reply[data-side={side}]").last


def stop(page: Page) -> Locator:
    return page.get_by_role("button", name="Stop")


def test_suggested_prompt_is_answered_by_both_models_in_one_press(chat: Page) -> None:
    chat.locator(".chat-try").first.click()

    for name in ("Base model", "Your model"):
        group = chat.get_by_role("group", name=name)
        expect(group.get_by_text(re.compile(r"^\d+ tokens?"))).to_be_visible()
        expect(group.locator(".judged")).to_have_text(re.compile("xpected"))
    expect(chat.locator("[data-wanted]").last).to_contain_text("Expected")
    expect(stop(chat)).to_be_hidden()
    said = chat.get_by_role("status").filter(has_text="Your model:")
    expect(said).to_have_text(re.compile("Base model: .*Your model: ", re.DOTALL))


def test_conversation_goes_on_by_keyboard_and_is_cleared(chat: Page) -> None:
    field = chat.get_by_role("textbox", name="Message to both models")
    field.fill("What is two plus two?")
    field.press("Shift+Enter")
    expect(field).to_have_value("What is two plus two?\n")
    field.press("Enter")
    expect(field).to_have_value("")
    expect(reply(chat, "run").locator("[data-figures]")).not_to_be_empty()
    first = reply(chat, "base").locator("[data-answer]").inner_text()

    field.fill("And then?")
    with chat.expect_request("**/chat/answers") as asked:
        field.press("Enter")
    body = asked.value.post_data_json or {}
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][1]["content"] == first
    expect(chat.locator(".chat-turn")).to_have_count(2)
    expect(stop(chat)).to_be_hidden()

    chat.get_by_role("button", name="New chat").click()
    expect(chat.locator(".chat-turn")).to_have_count(0)
    expect(field).to_be_focused()


def test_escape_stops_answers_and_retry_asks_again(chat: Page) -> None:
    chat.get_by_text("Settings", exact=True).last.click()
    chat.get_by_label("Temperature").fill("2")
    chat.get_by_label("Max tokens").fill("4096")
    field = chat.get_by_role("textbox", name="Message to both models")
    field.fill("Tell me a story.")
    field.press("Enter")
    expect(stop(chat)).to_be_visible()
    field.press("Escape")

    for side in ("base", "run"):
        expect(reply(chat, side).get_by_text("Stopped.")).to_be_visible()
    expect(stop(chat)).to_be_hidden()
    chat.get_by_label("Temperature").fill("0")
    chat.get_by_label("Max tokens").fill("1")
    reply(chat, "run").get_by_role("button", name="Retry").click()
    expect(reply(chat, "run").get_by_text("1 token", exact=True)).to_be_visible()
    expect(reply(chat, "base").get_by_text("Stopped.")).to_be_visible()


def test_cut_answer_is_continued_and_another_version_is_kept(chat: Page) -> None:
    chat.get_by_text("Settings", exact=True).last.click()
    chat.get_by_label("Max tokens").fill("12")
    ask(chat, "Tell me a story about a fox.")
    mine = reply(chat, "run")
    expect(mine.locator("[data-figures]")).not_to_be_empty()
    whole = mine.locator("[data-answer]").inner_text()
    chat.get_by_label("Max tokens").fill("3")
    mine.get_by_role("button", name="Regenerate").click()
    expect(mine.locator("[data-version]")).to_have_text("2 of 2")
    part = mine.locator("[data-answer]").inner_text()
    assert whole.startswith(part)

    mine.get_by_role("button", name="Continue").click()
    expect(stop(chat)).to_be_hidden()
    longer = mine.locator("[data-answer]").inner_text()
    assert len(longer) > len(part)
    assert "".join(whole.split()).startswith("".join(longer.split()))
    expect(mine.locator("[data-figures]")).to_contain_text("6 tokens")
    mine.get_by_role("button", name="Previous version").click()
    expect(mine.locator("[data-version]")).to_have_text("1 of 2")
    expect(mine.get_by_role("button", name="Previous version")).to_have_attribute(
        "aria-disabled", "true"
    )
    expect(mine.locator("[data-source]")).to_contain_text("starter with the adapter of run")


def test_drawn_answer_names_its_seed_and_regenerates_with_another(chat: Page) -> None:
    chat.get_by_text("Settings", exact=True).last.click()
    chat.get_by_label("Temperature").fill("1.5")
    chat.get_by_label("Max tokens").fill("8")
    chat.get_by_label("Seed").fill("7")
    ask(chat, "Tell me a story about a fox.")
    source = reply(chat, "run").locator("[data-source]")
    expect(source).to_contain_text("seed 7")
    reply(chat, "run").get_by_role("button", name="Regenerate").click()
    expect(reply(chat, "run").locator("[data-version]")).to_have_text("2 of 2")

    assert not source.inner_text().endswith("seed 7")
    expect(source).to_contain_text(re.compile(r"computed in float32 · chat template \w{8} · seed"))


def test_edited_message_is_sent_again_without_those_after_it(chat: Page) -> None:
    ask(chat, "What is two plus two?")
    expect(stop(chat)).to_be_hidden()
    ask(chat, "And then?")
    expect(stop(chat)).to_be_hidden()
    expect(chat.locator(".chat-turn")).to_have_count(2)
    chat.get_by_role("button", name="Edit").first.click()
    editor = chat.get_by_role("textbox", name="Edit this message")
    expect(editor).to_be_focused()
    editor.fill("What is three plus three?")
    with chat.expect_request("**/chat/answers") as asked:
        editor.press("Enter")

    assert [turn["content"] for turn in (asked.value.post_data_json or {})["messages"]] == [
        "What is three plus three?"
    ]
    expect(chat.locator(".chat-turn")).to_have_count(1)
    expect(chat.locator(".chat-turn")).to_contain_text("What is three plus three?")


def ask(page: Page, prompt: str) -> None:
    """Send a message and wait until the answers begin."""
    field = page.get_by_role("textbox", name="Message to both models")
    field.fill(prompt)
    field.press("Enter")
    expect(page.locator(".chat-turn").last).to_contain_text(prompt)


def test_chat_answers_beside_training_run(chat: Page, studio: Studio, training: int) -> None:
    """The only slot is taken, and memory allows both."""
    step = get_run(studio, training)["step"]
    chat.reload()
    expect(chat.locator(".chat[data-booted=done]")).to_be_visible()
    expect(chat.locator("#chat-wait")).to_be_empty()

    chat.locator(".chat-try").first.click()
    expect(reply(chat, "run").locator("[data-figures]")).not_to_be_empty()
    wait_until(lambda: get_run(studio, training)["step"] > step)
    assert get_run(studio, training)["status"] == "running"


def test_draft_survives_reload_and_lost_connection_is_explained(chat: Page) -> None:
    field = chat.get_by_role("textbox", name="Message to both models")
    field.press_sequentially("half a thought")
    chat.reload()
    expect(chat.locator(".chat[data-booted=done]")).to_be_visible()
    expect(field).to_have_value("half a thought")

    chat.route("**/chat/answers", lambda route: route.abort())
    field.press("Enter")
    expect(reply(chat, "base")).to_contain_text("The connection to the studio was lost.")
    chat.unroute("**/chat/answers")
    reply(chat, "base").get_by_role("button", name="Retry").click()
    expect(reply(chat, "base").locator("[data-figures]")).not_to_be_empty()
