"""The hardware strip in a real browser, fed by a real worker."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.support.live_studio import Studio, submit_run

pytestmark = pytest.mark.e2e

LONG = 100_000


def test_load_follows_the_worker_while_a_run_trains(page: Page, studio: Studio) -> None:
    number = submit_run(studio, max_steps=LONG)
    page.goto(f"/runs/{number}")
    strip = page.get_by_role("region", name="Hardware")

    expect(strip.locator("dd.value").first).to_have_text(re.compile(r"^\d+\s%$"))
    expect(strip).to_contain_text("this run")
    curve = strip.locator("polyline").first
    shown = curve.get_attribute("points")
    assert shown
    expect(curve).not_to_have_attribute("points", shown)

    studio.api.post(f"/runs/{number}/cancel").raise_for_status()
    expect(strip).to_contain_text("While this run trained")
