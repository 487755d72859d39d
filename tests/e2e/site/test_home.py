"""The home page: a first press, a dropped file, live cards, and what ended in the meantime."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.support.live_studio import Studio, get_run, submit_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e
WARM = True

LONG = 100_000


@pytest.mark.smoke
def test_file_dropped_on_first_screen_leads_to_its_columns(page: Page, tmp_path: Path) -> None:
    rows = "".join(f'{{"instruction": "Say {i}", "output": "{i}."}}\n' for i in range(30))
    (tmp_path / "numbers.jsonl").write_text(rows)
    page.goto("/")
    page.get_by_label("Bring your own data").set_input_files(tmp_path / "numbers.jsonl")

    page.wait_for_url(re.compile(r"/datasets/\d+/mapping"))


def test_card_of_running_run_is_live_and_pauses(page: Page, studio: Studio) -> None:
    number = submit_run(studio, "watched", max_steps=LONG)
    page.goto("/")
    card = page.locator(f"article[data-run='{number}']")
    curve = card.locator("polyline")
    expect(curve).to_have_attribute("points", re.compile(r"( .*){3}"))
    before = curve.get_attribute("points") or ""
    expect(curve).not_to_have_attribute("points", before)
    card.get_by_role("button", name="Pause").click()

    expect(card).to_have_count(0)
    assert page.url == f"{studio.url}/"
    wait_until(lambda: get_run(studio, number)["status"] == "paused")
    studio.api.post(f"/runs/{number}/cancel").raise_for_status()


def test_ended_run_stays_in_every_tab_until_dismissed(
    page: Page, context: BrowserContext, studio: Studio
) -> None:
    number = submit_run(studio, "watched to its end", max_steps=3)
    page.goto("/")
    expect(page.locator("#ended").get_by_text("watched to its end")).to_be_visible()
    second = context.new_page()
    second.goto("/")
    expect(second.locator("#ended").get_by_text("watched to its end")).to_be_visible()
    page.get_by_role("button", name=f"Dismiss run {number}").click()

    expect(page.locator("#ended").get_by_text("watched to its end")).to_have_count(0)
    second.reload()
    expect(second.locator("#ended").get_by_text("watched to its end")).to_have_count(0)
