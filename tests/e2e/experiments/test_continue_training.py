"""From one run to the next in a real browser: answers first, then comparisons."""

import json
import re

import pytest
from playwright.sync_api import Page, expect

from tests.support.live_studio import Studio

pytestmark = pytest.mark.e2e

RUN = re.compile(r"/runs/\d+$")
PAIRS = "".join(
    json.dumps(
        {
            "prompt": f"What is {one} plus {two}?",
            "chosen": f"It is {one + two}.",
            "rejected": f"It is {one + two + 1}, or so.",
        }
    )
    + "\n"
    for one in range(6)
    for two in range(6)
)
SUCCEEDED = "[data-run][data-status='succeeded']"


def start(page: Page) -> str:
    """Press Start, wait for the end of the run, and return its number."""
    page.locator("#start").click()
    page.wait_for_url(RUN)
    expect(page.locator(SUCCEEDED)).to_have_count(1, timeout=180_000)
    return page.url.rpartition("/")[2]


def test_preference_run_continues_a_supervised_run(page: Page, studio: Studio) -> None:
    page.goto("/new?preset=lora&optimisation.max_steps=2&samples.prompts=0")
    first = start(page)
    uploaded = studio.api.post("/datasets", files={"file": ("pairs.jsonl", PAIRS.encode())})
    assert uploaded.is_success, uploaded.text

    page.locator("#again summary").click()
    page.get_by_role("link", name="Continue training").click()
    expect(page.get_by_text(f"continues run-{first}")).to_be_visible()
    page.get_by_label("Dataset", exact=True).select_option("pairs")
    page.get_by_role("button", name="Learn from comparisons").first.click()
    expect(page.locator("input[name=method]")).to_have_value("dpo")
    expect(page.get_by_text(f"continues run-{first}")).to_be_visible()
    second = start(page)

    recipe = studio.api.get(f"/runs/{second}").json()["recipe"]
    assert (recipe["method"], recipe["dataset"]) == ("dpo", "pairs")
    assert recipe["adapter"]["continue_from"] == f"run-{first}"
    page.locator("#head").get_by_role("link", name=f"#{first}", exact=True).click()
    expect(page.locator("#head")).to_contain_text(f"Continued by #{second}")
