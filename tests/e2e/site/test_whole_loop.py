"""From a run to a better one: its worst rows become preferences that a next run learns."""

import re
import sys
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.support.live_studio import Studio, get_run, submit_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

VERDICT = re.compile("Better|Worse|Changed|No clear difference")
PAIRS = 8
SHORT = "&optimisation.max_steps=4&data.validation_share=0.2&optimisation.max_minutes="


def see_verdict(page: Page, studio: Studio, number: int) -> None:
    wait_until(lambda: has_verdict(studio, number))
    page.goto(f"{studio.url}/runs/{number}")
    expect(page.locator("#evaluation-line")).to_contain_text(VERDICT)


def has_verdict(studio: Studio, number: int) -> bool:
    evaluations = studio.api.get(f"/runs/{number}/evaluations").raise_for_status().json()
    return any(evaluation["verdict"] for evaluation in evaluations["data"])


def prefer_expected_answers(page: Page) -> None:
    """Prefer the expected answers of the worst rows, which come first."""
    page.locator("#evaluation-line").get_by_role("link", name="All answers").click()
    table = page.get_by_role("table", name="Answers of both models")
    for place in range(PAIRS):
        row = table.locator("tbody tr").nth(place)
        button = row.get_by_role("button", name="Prefer the expected answer")
        button.click()
        expect(button).to_have_attribute("aria-pressed", "true")


def ask_worst_row_again(page: Page) -> None:
    page.get_by_role("link", name="Ask again").first.click()
    expect(page.locator(".chat[data-booted=done]")).to_be_visible()
    page.get_by_role("button", name="Send", exact=True).click()
    answer = page.get_by_role("group", name="Your model", exact=True)
    expect(answer.get_by_role("button", name="Regenerate")).to_be_visible()


def train_on_feedback(page: Page, studio: Studio) -> int:
    """Make a dataset of the feedback and start a run on it. Return its number."""
    page.goto(f"{studio.url}/feedback")
    page.get_by_role("button", name="Make a dataset").click()
    address = page.get_by_role("link", name="Train on this").get_attribute("href") or ""
    page.goto(studio.url + address + SHORT)
    page.get_by_role("button", name="Start").first.click()
    page.wait_for_url(re.compile(r"/runs/\d+$"))
    return int(page.url.rpartition("/")[2])


def test_worst_rows_become_preferences_that_a_next_run_learns(
    page: Page, make_studio: Callable[..., Studio], capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    studio = make_studio(evaluates=True)
    first = submit_run(studio)
    see_verdict(page, studio, first)
    prefer_expected_answers(page)
    ask_worst_row_again(page)
    second = train_on_feedback(page, studio)
    wait_until(lambda: get_run(studio, second)["status"] == "succeeded")
    see_verdict(page, studio, second)
    with capsys.disabled():
        sys.stdout.write(f"\nThe whole loop took {time.monotonic() - began:.0f} s.\n")

    recipe = get_run(studio, second)["recipe"]
    assert (recipe["method"], recipe["dataset"]) == ("dpo", "preferences from feedback")
    assert recipe["optimisation"]["max_steps"] == 4
