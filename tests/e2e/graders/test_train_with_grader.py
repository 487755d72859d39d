"""A newcomer's path in a real browser: from rows with answers to a run that learns from scores."""

import json
import re

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.graders.test_graders import ROWS
from tests.support.live_studio import Studio

pytestmark = pytest.mark.e2e


@pytest.fixture
def sums(studio: Studio, page: Page) -> Page:
    """Open the page of a dataset of questions as gsm8k has them."""
    files = {"file": ("sums.jsonl", ROWS.encode())}
    sent = studio.api.post("/datasets", files=files, data={"name": "sums"})
    page.goto(f"/datasets/{sent.raise_for_status().json()['id']}")
    return page


def contains(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text))


def test_newcomer_learns_from_scores(sums: Page) -> None:
    page = sums
    page.get_by_role("link", name="Learn from scores", exact=True).click()
    rewarded = page.locator("#rewarded")
    expect(rewarded).to_contain_text("The right number")
    expect(rewarded).to_contain_text("item.reference_answer")
    expect(page.locator("#tuned")).to_contain_text("64 answers a step")

    page.get_by_label("Expected answers").check()
    page.get_by_role("button", name="Grade", exact=True).click()
    trial = page.locator("#trial")
    expect(trial.get_by_role("heading")).to_have_text("All expected answers get the full score.")
    page.get_by_label("Name", exact=True).fill("sums by scores")

    page.get_by_role("button", name="Change…").click()
    page.get_by_label("Tolerance").fill("0.5")
    page.get_by_label("Tolerance").press("Tab")
    expect(page.get_by_role("textbox", name="Grader JSON")).to_have_value(contains("'0.5'"))
    page.get_by_role("button", name="Train with it").click()
    expect(page.get_by_label("Name", exact=True)).to_have_value("sums by scores")
    expect(rewarded).to_contain_text("The right number")

    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_role("heading", name="sums by scores")).to_be_visible()


@pytest.mark.usefixtures("studio")
def test_grader_is_edited_as_json_in_the_form(page: Page) -> None:
    page.goto("/new?method=grpo&dataset=starter#reward-grader")
    field = page.locator(".field", has=page.locator("#reward-grader"))
    area = field.get_by_role("textbox")
    grader = json.loads(area.input_value())

    area.fill(json.dumps(grader))
    expect(field).not_to_have_class(contains("changed"))
    area.fill(json.dumps({**grader, "name": "another"}))
    expect(field).to_have_class(contains("changed"))
    field.get_by_role("button", name="Reset").click()
    expect(field).not_to_have_class(contains("changed"))
    assert json.loads(area.input_value()) == grader
