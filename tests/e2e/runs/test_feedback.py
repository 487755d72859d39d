"""From answers in a chat to data to train on, in a real browser with real models."""

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.live_studio import Studio

pytestmark = pytest.mark.e2e


def kept(studio: Studio, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = studio.api.get(f"/feedback?kind={kind}").json()["data"]
    return found


def reply(page: Page, name: str) -> Locator:
    return page.get_by_role("group", name=name, exact=True).last


def press(group: Locator, name: str) -> Locator:
    button = group.get_by_role("button", name=name, exact=True)
    button.click()
    return button


def pressed(button: Locator, *, state: bool = True) -> None:
    expect(button).to_have_attribute("aria-pressed", str(state).lower())


def draw_answers(chat: Page) -> None:
    """Let chance decide, so that both models answer differently."""
    chat.get_by_text("Settings", exact=True).last.click()
    chat.get_by_label("Temperature").fill("1.5")


def ask_until_comparable(chat: Page) -> tuple[Locator, Locator]:
    """Ask until both answers are whole and differ. Return them, that of the run first."""
    tuned, base = reply(chat, "Your model"), reply(chat, "Base model")
    for _attempt in range(20):
        chat.locator(".chat-try").first.click()
        expect(tuned.get_by_role("button", name="Better", exact=True)).to_be_visible()
        expect(chat.get_by_role("button", name="Stop")).to_be_hidden()
        texts = {one.locator("[data-answer]").inner_text() for one in (tuned, base)}
        if len(texts) == 2 and not chat.get_by_text("Cut off by max tokens").count():
            return tuned, base
    raise AssertionError("No two answers could be compared.")


def ask_twice(chat: Page) -> bool:
    """Ask and ask on. Return whether chance made the first answers differ, and all have text."""
    draw_answers(chat)
    field = chat.get_by_role("textbox", name="Message to both models")
    for turn, prompt in enumerate(("Hello", "And then?"), 1):
        field.fill(prompt)
        chat.keyboard.press("Enter")
        expect(chat.locator(".chat-turn")).to_have_count(turn)
        expect(reply(chat, "Your model").locator("[data-figures]")).not_to_be_empty()
        expect(chat.get_by_role("button", name="Stop")).to_be_hidden()
    first, second, *others = chat.locator("[data-answer]").all_inner_texts()
    return first.strip() != second.strip() and all(map(str.strip, (first, second, *others)))


def test_preferred_answer_becomes_a_dataset_for_dpo(
    chat: Page, studio: Studio, finished: int
) -> None:
    draw_answers(chat)
    tuned, base = ask_until_comparable(chat)
    better = press(tuned, "Better")
    pressed(better)
    expect(tuned.get_by_role("status")).to_have_text("Kept as a preference. See all feedback")

    (said,) = kept(studio, "preference")
    assert (said["model"], said["other_model"]) == (f"run {finished}", "starter")
    assert (said["said_in"], said["run_id"], said["temperature"]) == ("chat", finished, 1.5)
    assert said["row"]["chosen"][0]["content"] == tuned.locator("[data-answer]").inner_text()
    assert said["row"]["messages"][-1]["role"] == "user"

    # The other one is better after all: the earlier opinion is replaced.
    pressed(press(base, "Better"))
    pressed(better, state=False)
    assert [one["model"] for one in kept(studio, "preference")] == ["starter"]

    base.get_by_role("link", name="See all feedback").click()
    expect(chat.get_by_text("Fewer than 50 preferences teach little")).to_be_visible()
    chat.get_by_role("button", name="Make a dataset").click()
    expect(chat.get_by_text("Made version 1 of preferences from feedback.")).to_be_visible()
    chat.get_by_role("link", name="Train on this").click()
    expect(chat).to_have_url(re.compile("/new"))
    form = chat.locator("form").filter(has=chat.locator("[name=dataset]"))
    expect(form.locator("[name=method]").first).to_have_value("dpo")
    expect(form.locator("[name=dataset]").first).to_have_value("preferences from feedback")


def test_ratings_are_kept_replaced_and_taken_back_by_keyboard(chat: Page, studio: Studio) -> None:
    chat.locator(".chat-try").nth(1).click()
    tuned = reply(chat, "Your model")
    good = tuned.get_by_role("button", name="Good answer")
    bad = tuned.get_by_role("button", name="Bad answer")
    good.focus()
    chat.keyboard.press("Space")
    pressed(good)
    assert [one["row"]["label"] for one in kept(studio, "judged")] == [True]

    chat.keyboard.press("Tab")
    chat.keyboard.press("Enter")
    pressed(bad)
    pressed(good, state=False)
    assert [one["row"]["label"] for one in kept(studio, "judged")] == [False]

    bad.click()
    pressed(bad, state=False)
    assert kept(studio, "judged") == []


def test_edited_answer_is_preferred_over_the_original(chat: Page, studio: Studio) -> None:
    before = len(kept(studio, "preference"))
    chat.locator(".chat-try").nth(2).click()
    tuned = reply(chat, "Your model")
    edit = press(tuned, "Edit answer")
    field = tuned.get_by_label("A better answer")
    original = tuned.locator("[data-answer]").inner_text()
    expect(field).to_have_value(original)
    chat.keyboard.press("Escape")
    expect(edit).to_be_focused()

    edit.click()
    press(tuned, "Keep")
    expect(tuned.get_by_role("status")).to_contain_text("Both answers are the same")
    field.fill("What it should say.")
    press(tuned, "Keep")
    pressed(edit)
    expect(tuned.get_by_text("What it should say.").last).to_be_visible()
    said = kept(studio, "preference")[0]
    assert said["row"]["chosen"][0]["content"] == "What it should say."
    assert said["row"]["rejected"][0]["content"] == original
    assert (said["model"], said["other_model"][:3]) == ("", "run")

    press(tuned, "Undo")
    pressed(edit, state=False)
    assert len(kept(studio, "preference")) == before


def test_answers_that_stop_in_the_middle_are_no_examples(chat: Page, studio: Studio) -> None:
    before = len(kept(studio, "judged"))
    chat.get_by_text("Settings", exact=True).last.click()
    chat.get_by_label("Max tokens").fill("1")
    chat.get_by_role("textbox", name="Message to both models").fill("Tell me a story.")
    chat.keyboard.press("Enter")
    tuned = reply(chat, "Your model")
    good = press(tuned, "Good answer")

    expect(tuned.get_by_role("status")).to_contain_text("This answer stops in the middle")
    pressed(good, state=False)
    assert len(kept(studio, "judged")) == before
    pressed(press(tuned, "Bad answer"))


def test_other_conversations_are_not_compared(chat: Page, studio: Studio) -> None:
    before = len(kept(studio, "preference"))
    while not ask_twice(chat):
        chat.reload()
    tuned = reply(chat, "Your model")
    press(tuned, "Better")

    expect(tuned.get_by_role("status")).to_contain_text("follow different conversations")
    assert len(kept(studio, "preference")) == before


def test_best_of_several_answers_is_preferred_over_each_other(
    page: Page, studio: Studio, finished: int
) -> None:
    before = len(kept(studio, "preference"))
    models = f"model=base:{finished}&model=run:{finished}&model=run:{finished}"
    page.goto(f"/playground?{models}&temperature=1.5&max_tokens=256")
    expect(page.locator(".chat[data-booted=done]")).to_be_visible()
    field = page.get_by_role("textbox", name="Message to all models")
    field.fill("What is two plus two?")
    field.press("Enter")
    expect(page.locator(".chat-turn")).to_have_count(1)
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    second = reply(page, "Column 2")
    better = press(second, "Better")

    pressed(better)
    said = kept(studio, "preference")[: len(kept(studio, "preference")) - before]
    assert sorted(one["other_model"] for one in said) == [f"run {finished}", "starter"]
    assert {(one["model"], one["said_in"]) for one in said} == {(f"run {finished}", "playground")}
    press(second, "Better")
    pressed(better, state=False)
    assert len(kept(studio, "preference")) == before
