"""Notifications and the history of a run in a real browser, while the run trains."""

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser_tabs import look
from tests.support.live_studio import Studio, get_run, submit_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e
WARM = True

LONG = 100_000

KEEP_WHAT_IS_SHOWN = """
    window.shown = [];
    window.Notification = class {
        static get permission() { return sessionStorage.permission ?? "default"; }
        static async requestPermission() { sessionStorage.permission = "granted"; }
        constructor(title, options) { window.shown.push([title, options.body]); }
    };
"""
"""A browser without a screen shows no notifications: this keeps what it was asked to show."""


def end(studio: Studio, number: int) -> None:
    studio.api.post(f"/runs/{number}/cancel").raise_for_status()


def ask_for_notification(page: Page) -> None:
    # The heading is drawn again, with its menu closed, when the status changes.
    expect(page.locator("#head")).to_contain_text("running")
    page.locator("#more > summary").click()
    page.get_by_role("button", name="Notify me").click()


def test_ended_run_shows_notification(page: Page, studio: Studio) -> None:
    page.add_init_script(KEEP_WHAT_IS_SHOWN)
    number = submit_run(studio, max_steps=LONG)
    page.goto(f"/runs/{number}")
    ask_for_notification(page)
    expect(page.get_by_text("You will get a notification.")).to_be_visible()
    page.reload()
    bell = page.locator("[data-bell]")
    expect(bell).to_have_attribute("aria-pressed", "true")
    end(studio, number)

    expect(page.get_by_text("quick was cancelled.")).to_be_visible()
    assert page.evaluate("window.shown") == [["quick was cancelled.", ""]]
    expect(bell).to_have_count(0)


def test_hidden_tab_of_ended_run_shows_notification_unasked(page: Page, studio: Studio) -> None:
    page.add_init_script(KEEP_WHAT_IS_SHOWN)
    page.clock.install()
    number = submit_run(studio, max_steps=LONG)
    page.goto(f"/runs/{number}")
    page.evaluate("Notification.requestPermission()")
    expect(page.locator("#head")).to_contain_text("running", timeout=60_000)
    expect(page.get_by_text("Live", exact=True)).to_be_attached()
    look(page, away=True)
    # Its stream is closed then, so that it takes no connection from the tabs in use.
    page.clock.fast_forward(6000)
    expect(page.get_by_text("Paused", exact=True)).to_be_attached()
    end(studio, number)
    wait_until(lambda: get_run(studio, number)["status"] == "cancelled", seconds=60)
    page.clock.fast_forward(11_000)

    wait_until(lambda: page.evaluate("window.shown.length"))
    assert page.evaluate("window.shown") == [["quick was cancelled.", ""]]
    expect(page).to_have_title("quick was cancelled. · Mantissa Studio")
    look(page, away=False)
    expect(page.locator("[data-toast]")).to_contain_text("quick was cancelled.")


def test_visible_page_of_ended_run_shows_only_a_toast(page: Page, studio: Studio) -> None:
    page.add_init_script(KEEP_WHAT_IS_SHOWN)
    number = submit_run(studio, max_steps=LONG)
    page.goto(f"/runs/{number}")
    page.evaluate("Notification.requestPermission()")
    expect(page.locator("#head")).to_contain_text("running", timeout=60_000)
    end(studio, number)

    expect(page.locator("[data-toast]")).to_contain_text("quick was cancelled.", timeout=60_000)
    assert page.evaluate("window.shown") == []


def test_page_title_shows_status_when_notifications_are_denied(page: Page, studio: Studio) -> None:
    number = submit_run(studio, max_steps=LONG)
    page.goto(f"/runs/{number}")
    ask_for_notification(page)
    expect(page.get_by_text("the tab title will show the result")).to_be_visible()
    end(studio, number)

    expect(page.get_by_text("quick was cancelled.")).to_be_visible()
    # The head is drawn anew by then, which brings the page's own title along.
    expect(page.locator("#more").get_by_text("Move to trash")).to_be_attached()
    expect(page).to_have_title("quick was cancelled. · Mantissa Studio")


def test_run_history_grows_live(page: Page, studio: Studio) -> None:
    number = submit_run(studio, max_steps=LONG)
    page.goto(f"/runs/{number}/details")
    story = page.get_by_role("list", name="Events, newest first")
    expect(story.get_by_text("Started training.")).to_be_visible()
    end(studio, number)

    expect(story.get_by_text("Asked to stop.")).to_be_visible()
    expect(page.get_by_role("cell", name="cancelled")).to_be_visible()
