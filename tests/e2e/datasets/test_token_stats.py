"""How long rows are, and what a cut costs, as a person meets it."""

import re
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

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


@pytest.fixture
def lengths(page: Page, studio: Studio) -> Locator:
    """Open the statistics, and return the lengths of the training rows."""
    counts = partial(studio.api.post, "/datasets/1/stats", json={"model": "starter"})
    wait_until(lambda: counts().is_success)
    page.goto("/datasets/1/stats?model=starter&max_length=40")
    return page.locator("[data-drawing=row-lengths-train]")


WHOLE = "0 0 80 100"


def test_row_lengths_are_zoomed_by_pointer(page: Page, lengths: Locator) -> None:
    plot, first = lengths.get_by_role("img"), lengths.locator("[data-tick]").first
    reset = lengths.get_by_role("button", name="Reset zoom")
    expect(plot).to_have_attribute("viewBox", WHOLE)

    box = plot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 60, steps=5)
    expect(lengths.locator(".selection")).to_be_visible()
    page.mouse.up()
    expect(plot).to_have_attribute("viewBox", "30 0 30 100")
    expect(first).to_have_text("29")
    reset.click()
    expect(plot).to_have_attribute("viewBox", WHOLE)
    expect(first).to_have_text("17")
    expect(reset).to_be_hidden()


def test_row_lengths_are_zoomed_by_keys_and_stay_when_redrawn(page: Page, lengths: Locator) -> None:
    plot, keys = lengths.get_by_role("img"), lengths.locator("[data-zooms]")
    keys.press("+")
    expect(plot).to_have_attribute("viewBox", "20 0 40 100")
    keys.press("ArrowRight")
    expect(plot).to_have_attribute("viewBox", "30 0 40 100")
    page.get_by_label("Max sequence length").fill("41")
    expect(lengths).to_contain_text("truncated to 41")
    expect(plot).to_have_attribute("viewBox", "30 0 40 100")
    plot.dblclick()
    expect(plot).to_have_attribute("viewBox", WHOLE)


def test_row_lengths_are_saved(page: Page, lengths: Locator) -> None:
    picture = saved(page, lengths, "SVG").decode()

    assert "<title>Training rows by length</title>" in picture
    assert "truncated to 40" in picture
    assert saved(page, lengths, "CSV").startswith(b"Shortest,Longest,Rows,Truncated\r\n17,")
    assert saved(page, lengths, "PNG").startswith(b"\x89PNG")


def saved(page: Page, drawing: Locator, kind: str) -> bytes:
    """Save a drawing by its menu."""
    drawing.locator(".chart-menu > summary").click()
    with page.expect_download() as kept:
        drawing.get_by_role("button", name=f"Save as {kind}").click()
    assert kept.value.suggested_filename == f"row-lengths-train.{kind.lower()}"
    return Path(kept.value.path()).read_bytes()
