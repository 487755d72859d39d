"""A page whose studio is away: it says so, disables what can do nothing, and recovers by itself."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, Route, expect

from tests.support.live_studio import Studio, get_run, submit_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

LONG = 100_000
AWAY = "The studio is not responding."
UNSAVED = f"{AWAY} Nothing was saved; try again."
BACK = "The studio is back online."


@pytest.fixture
def number(studio: Studio) -> Iterator[int]:
    number = submit_run(studio, max_steps=LONG)
    yield number
    studio.api.post(f"/runs/{number}/cancel")


@contextmanager
def away(studio: Studio) -> Iterator[None]:
    """Have no studio for a while; the run's process goes on."""
    studio.kill()
    studio.wait()
    try:
        yield
    finally:
        studio.start()


def notice(page: Page) -> Locator:
    return page.locator("#notice")


def save_view(page: Page, name: str) -> None:
    page.locator("#views summary").click()
    page.get_by_label("Name of this view").fill(name)
    page.get_by_role("button", name="Save view").click()


def test_live_page_reports_unreachable_studio_and_recovers(
    page: Page, studio: Studio, number: int
) -> None:
    page.goto(f"/runs/{number}")
    wait_until(lambda: get_run(studio, number)["step"] >= 2)
    pause = page.get_by_role("button", name="Pause", exact=True)
    expect(page.locator("#connection")).to_have_text("Live")
    with away(studio):
        expect(notice(page)).to_contain_text(AWAY)
        expect(notice(page)).to_contain_text(re.compile(r"Last update \d+ s ago"))
        expect(pause).to_be_disabled()
    expect(notice(page)).to_contain_text(BACK)
    expect(pause).to_be_enabled()
    expect(page.locator("#connection")).to_have_text("Live")
    seen = int(page.locator("#outcome [data-put=step]").inner_text().replace(",", ""))
    wait_until(lambda: get_run(studio, number)["step"] > seen)
    expect(page.locator("#outcome [data-put=step]")).not_to_have_text(str(seen))


def test_navigation_while_studio_is_down_shows_notice(page: Page, studio: Studio) -> None:
    page.goto("/datasets/1")
    with away(studio):
        page.get_by_role("link", name="Queue").click()
        expect(notice(page)).to_contain_text(f"{AWAY} Try again.")
    expect(notice(page)).to_contain_text(BACK)
    page.get_by_role("link", name="Queue").click()
    expect(page.get_by_role("heading", name="Queue", level=1)).to_be_visible()


@pytest.mark.parametrize(
    ("status", "said"),
    [(502, UNSAVED), (503, UNSAVED), (504, "The studio may still be working on it")],
)
def test_proxy_error_page_is_not_shown(page: Page, studio: Studio, status: int, said: str) -> None:
    submit_run(studio, max_steps=1)
    page.goto("/")

    def refuse(route: Route) -> None:
        route.fulfill(status=status, body="<html><h1>nginx</h1></html>")

    page.route("**/views", refuse)
    save_view(page, "kept")
    expect(notice(page)).to_contain_text(said)
    expect(page.get_by_role("heading", name="nginx")).to_have_count(0)
    expect(page.get_by_label("Name of this view")).to_have_value("kept")


def test_offline_notice_appears_and_clears_after_reconnect(
    page: Page, context: BrowserContext
) -> None:
    page.goto("/")
    expect(page.locator("#connection")).to_have_text("Live")
    context.set_offline(True)
    expect(notice(page)).to_contain_text(AWAY)
    context.set_offline(False)

    expect(notice(page)).to_contain_text(BACK)
    expect(page.locator("#connection")).to_have_text("Live")


def test_slow_response_shows_busy_indicator(page: Page, studio: Studio) -> None:
    submit_run(studio, max_steps=1)
    page.goto("/")
    assert studio.process is not None
    os.kill(studio.process.pid, signal.SIGSTOP)
    try:
        save_view(page, "slow")
        expect(page.locator("html[data-busy]")).to_have_count(1)
        expect(notice(page)).to_contain_text("The studio is still working on it.")
    finally:
        os.kill(studio.process.pid, signal.SIGCONT)

    expect(page.locator("html[data-busy]")).to_have_count(0)
    expect(page.locator("#views .menu-list a")).to_have_text(["slow"])
