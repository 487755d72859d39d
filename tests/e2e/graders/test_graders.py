"""A grader is built without code and tried, in a real browser, on answers of a real model."""

import json
import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.live_studio import Studio

pytestmark = pytest.mark.e2e

SUMS = [(31_407 * place, 52_113 + place) for place in range(1, 13)]
ROWS = "".join(
    json.dumps(
        {
            "question": f"What is {one} plus {other}?",
            "answer": f"{one} and {other} are {one + other:,}.\n#### {one + other}",
        }
    )
    + "\n"
    for one, other in SUMS
)


@pytest.fixture(scope="module")
def sums(studio: Studio) -> str:
    """Add questions as gsm8k has them."""
    files = {"file": ("sums.jsonl", ROWS.encode())}
    sent = studio.api.post("/datasets", files=files, data={"name": "sums"})
    sent.raise_for_status()
    return "sums"


@pytest.fixture
def builder(page: Page, sums: str) -> Page:
    page.goto(f"/graders?dataset={sums}")
    return page


def grader_json(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Grader JSON")


def grade(page: Page) -> Locator:
    page.get_by_role("button", name="Grade", exact=True).click()
    return page.locator("#trial")


def test_number_grader_is_built_and_tried_on_rows_and_on_a_model(builder: Page) -> None:
    page = builder
    expect(page.get_by_label("Reward", exact=True)).to_have_value("number")
    expect(grader_json(page)).to_have_value(json_with('"type": "python"'))
    page.get_by_label("Tolerance").fill("0.5")
    page.get_by_label("Tolerance").press("Tab")
    expect(grader_json(page)).to_have_value(json_with("Decimal('0.5')"))

    trial = grade(page)
    expect(trial.get_by_role("heading")).to_have_text("All expected answers get the full score.")
    expect(trial.get_by_role("rowheader")).to_have_count(8)
    expect(trial).to_contain_text("####")

    page.get_by_label("Answers of a model").check()
    page.get_by_label("Model", exact=True).select_option("starter")
    page.get_by_label("Answers a row").fill("2")
    page.get_by_label("Longest answer, in tokens").fill("8")
    page.get_by_label("Rows", exact=True).fill("3")
    trial = grade(page)
    expect(trial.get_by_role("heading")).to_contain_text("the model never gets a reward")
    expect(trial.locator("tbody tr")).to_have_count(6)
    expect(trial).to_contain_text("Rows without spread")

    page.get_by_label("Reward", exact=True).select_option("length")
    expect(grader_json(page)).to_have_value(json_with("LOW, HIGH"))
    trial = grade(page)
    expect(trial.get_by_role("heading")).not_to_contain_text("the model never gets a reward")
    expect(trial.locator("tbody tr")).to_have_count(6)


def test_json_that_is_edited_changes_the_fields(builder: Page) -> None:
    page = builder
    grader = {
        "name": "said",
        "type": "string_check",
        "input": "{{ sample.output_text }}",
        "reference": "because",
        "operation": "like",
    }
    grader_json(page).fill(json.dumps(grader))
    grader_json(page).press("Tab")
    expect(page.get_by_label("Reward", exact=True)).to_have_value("contains")
    expect(page.get_by_label("Expected answer", exact=True)).to_have_value("because")

    grader_json(page).fill("{")
    grader_json(page).press("Tab")
    expect(page.get_by_text("This is not valid JSON")).to_be_visible()
    expect(grader_json(page)).to_have_value("{")
    expect(page.get_by_label("Expected answer", exact=True)).to_have_value("because")


def test_rewards_are_combined_by_keyboard(builder: Page) -> None:
    page = builder
    page.get_by_role("button", name="Add a reward").press("Enter")
    expect(page.get_by_label("Formula")).to_have_value("(number + thinking) / 2")
    weight = page.get_by_label("Weight number")
    weight.fill("3")
    weight.press("Enter")
    expect(page.get_by_label("Formula")).to_have_value("(3 * number + thinking) / 4")
    expect(grader_json(page)).to_have_value(json_with("(3 * number + thinking) / 4"))
    page.get_by_role("button", name="Remove number").press("Enter")
    expect(page.get_by_label("Formula")).to_be_hidden()
    expect(page.get_by_label("Reward", exact=True)).to_have_value("thinking")


def json_with(text: str) -> re.Pattern[str]:
    """Match JSON with a text in it."""
    return re.compile(re.escape(text))
