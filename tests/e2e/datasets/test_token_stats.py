"""How long rows are, and what a cut costs, as a person meets it."""

import re
from functools import partial

import pytest
from playwright.sync_api import Page, expect

from tests.support.live_studio import Studio
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


def test_statistics_page_counts_truncates_and_searches_rows(page: Page) -> None:
    page.goto("/datasets/1")
    page.get_by_role("link", name="Statistics").click()
    page.get_by_role("button", name="Count tokens").click()
    sentence = page.locator("#stats strong").first
    expect(sentence).to_have_text("None of 2,960 rows will be truncated to 1,024 tokens.")

    page.get_by_label("Max sequence length").fill("40")
    expect(sentence).to_contain_text("rows will be truncated to 40 tokens")
    expect(page).to_have_url(re.compile("max_length=40"))
    expect(page.get_by_role("img")).to_have_count(2)
    page.get_by_text("Show as table").first.click()
    expect(page.get_by_role("region", name="Training rows by length")).to_be_visible()

    page.get_by_role("searchbox", name="Search text").fill("guitar")
    page.get_by_role("searchbox", name="Search text").press("Enter")
    expect(page.locator("#stats .card")).to_contain_text("guitar")
    first = page.get_by_label("Row", exact=True).input_value()
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_label("Row", exact=True)).not_to_have_value(first)
    expect(page.get_by_role("button", name="Next")).to_be_focused()
    page.get_by_role("button", name="Previous").click()
    expect(page.get_by_label("Row", exact=True)).to_have_value(first)
    expect(page.get_by_label("Max sequence length")).to_have_value("40")

    page.get_by_role("link", name=f"View tokens of row {first}").click()
    expect(page.locator("#sight mark").first).to_be_visible()
    expect(page.locator("#look-row")).to_have_value(first)


def test_truncation_is_shown_before_start(page: Page, studio: Studio) -> None:
    counts = partial(studio.api.post, "/datasets/1/stats", json={"model": "starter"})
    wait_until(lambda: counts().is_success)
    page.goto("/new?preset=full#settings")
    page.get_by_label("Max sequence length").fill("40")
    page.get_by_label("Max sequence length").blur()
    expect(page.locator("#advice")).to_contain_text("rows will be truncated to 40 tokens")
    page.get_by_role("link", name="Lengths of all rows").click()

    expect(page.get_by_label("Max sequence length")).to_have_value("40")
    expect(page.locator("#stats strong").first).to_contain_text(
        "rows will be truncated to 40 tokens"
    )
