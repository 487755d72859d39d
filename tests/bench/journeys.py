"""The journeys of a newcomer, in a real browser: how long each takes, and how many presses.

Run it alone with `python -m tests.bench.journeys`. The tests in `tests/e2e` count the presses, too;
only here the clock counts. Budgets: from a fresh home to the result card 90 s and 3 presses; from
an own CSV to a started run 6 presses; from a result to a chat 1 press, and to a download 2.
"""

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Page, expect, sync_playwright

from tests.bench.measurement import Measurement
from tests.support.live_studio import Studio, free_port, stop_everything
from tests.support.presses import Presser, write_csv
from tests.tools.browser import FLAGS, find_browser

RUN = re.compile(r"/runs/\d+$")
PATIENCE_MS = 600_000
"""How long to wait for what may take minutes on a busy machine."""


class Journey:
    """The time and presses from one place to another."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.hand = Presser()

    def arrived(self, name: str, budget: str) -> Iterator[Measurement]:
        yield Measurement(name, time.perf_counter() - self.began, "s")
        yield Measurement(f"  presses (budget {budget})", self.hand.count, "")


def measure() -> Iterator[Measurement]:
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        start = Journey()
        studio = Studio(Path(folder) / "home", free_port(), warm=True)
        studio.home.mkdir()
        studio.start()
        browser = playwright.chromium.launch(executable_path=str(find_browser()), args=FLAGS)
        page = browser.new_page(base_url=studio.url)
        page.set_default_timeout(PATIENCE_MS)
        try:
            yield from _try_it(page, start)
            yield from _download(page)
            yield from _chat(page)
            yield from _bring_own_data(page, Path(folder))
        finally:
            browser.close()
            stop_everything(studio)


def _try_it(page: Page, start: Journey) -> Iterator[Measurement]:
    page.goto("/")
    yield Measurement("fresh home → first page", time.perf_counter() - start.began, "s")
    start.hand.press(page.get_by_role("button", name="Try it: train a model in about a minute"))
    page.wait_for_url(RUN)
    expect(page.locator("#result-title")).to_be_visible(timeout=PATIENCE_MS)
    yield from start.arrived("fresh home → result card (budget 90)", "3")


def _download(page: Page) -> Iterator[Measurement]:
    journey = Journey()
    with page.expect_download() as download:
        journey.hand.press(page.locator("#head").get_by_role("link", name="Download"))
    download.value.path()
    yield from journey.arrived("result → downloaded model", "2")


def _chat(page: Page) -> Iterator[Measurement]:
    journey = Journey()
    journey.hand.press(page.locator("#head").get_by_role("link", name="Chat"))
    expect(page.locator(".chat[data-booted=done]")).to_be_visible(timeout=PATIENCE_MS)
    yield from journey.arrived("result → chat", "1")
    journey.hand.press(page.locator(".chat-try").first)
    both = page.get_by_text(re.compile(r"^\d+ tokens?"))
    expect(both).to_have_count(2, timeout=PATIENCE_MS)
    yield Measurement("result → answers of both models", time.perf_counter() - journey.began, "s")


def _bring_own_data(page: Page, folder: Path) -> Iterator[Measurement]:
    page.goto("/settings")
    journey = Journey()
    journey.hand.press(page.get_by_role("navigation", name="Main").locator("[href='/new']"))
    journey.hand.choose_file(page, write_csv(folder / "mine.csv", "instruction,output"))
    expect(page.locator("#dataset-facts")).to_contain_text("40 rows", timeout=PATIENCE_MS)
    journey.hand.press(page.locator("#start"))
    page.wait_for_url(RUN)
    yield from journey.arrived("own CSV → started run", "6")


if __name__ == "__main__":
    for figure in measure():
        sys.stdout.write(f"{figure}\n")
        sys.stdout.flush()
