"""The menu in a real browser: a side bar, a rail, and on phones a bar with a sheet."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from studio.db.session import open_engine, unit_of_work
from studio.db.states import RunStatus
from studio.services.runs import states
from tests.support.factories import make_run
from tests.support.live_studio import Studio, stop_everything

pytestmark = pytest.mark.e2e

MAX_SHIFT = 0.02
WATCH_SHIFTS = """
  localStorage.tour = 'done';
  window.shift = 0;
  new PerformanceObserver((all) => { for (const one of all.getEntries()) shift += one.value; })
    .observe({ type: "layout-shift", buffered: true });
"""
DEVICES = {"phone": (390, 844), "tablet": (768, 1024), "desktop": (1280, 800)}


@pytest.fixture(scope="module")
def quiet_studio(starter_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    """Share a studio without a worker, where nothing changes by itself."""
    studio = Studio.copied(starter_home, tmp_path_factory.mktemp("menu") / "home")
    studio.worker = False
    studio.start()
    yield studio
    stop_everything(studio)


def open_page(browser: Browser, studio: Studio, device: str, path: str) -> Page:
    width, height = DEVICES[device]
    page = browser.new_page(
        base_url=studio.url, viewport={"width": width, "height": height}, reduced_motion="reduce"
    )
    page.add_init_script(WATCH_SHIFTS)
    page.goto(path)
    return page


@pytest.fixture
def phone(browser: Browser, quiet_studio: Studio) -> Iterator[Page]:
    page = open_page(browser, quiet_studio, "phone", "/models")
    yield page
    page.close()


@pytest.mark.smoke
def test_sheet_of_phone_opens_page_and_closes(phone: Page) -> None:
    phone.get_by_role("button", name="More").click()
    sheet = phone.locator("#menu")
    expect(sheet.get_by_role("link", name="Models")).to_have_attribute("aria-current", "page")
    sheet.get_by_role("link", name="Settings").click()

    expect(phone.get_by_role("heading", name="Settings", level=1)).to_be_visible()
    expect(sheet).to_be_hidden()


def test_sheet_holds_theme_and_language_and_closes_by_escape(phone: Page) -> None:
    phone.get_by_role("button", name="More").press("Enter")
    sheet = phone.locator("#menu")
    expect(sheet.get_by_role("button", name="Theme")).to_be_visible()
    expect(sheet.get_by_role("button", name="中文")).to_be_visible()
    found = Axe().run(phone).response["violations"]
    assert [(rule["id"], rule["nodes"][0]["html"]) for rule in found] == []
    phone.keyboard.press("Escape")

    expect(sheet).to_be_hidden()
    expect(phone.get_by_role("button", name="More")).to_be_focused()


def test_bar_of_phone_covers_no_content(phone: Page) -> None:
    phone.goto("/settings")
    phone.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    last = phone.evaluate(
        "Math.max(...[...document.querySelectorAll('main *')]"
        ".map((one) => one.getBoundingClientRect().bottom))"
    )
    bar = phone.locator(".dock").bounding_box()

    assert bar is not None
    assert last <= bar["y"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("path", ["/", "/new", "/settings"])
def test_page_does_not_shift_while_loading(
    browser: Browser, quiet_studio: Studio, device: str, path: str
) -> None:
    page = open_page(browser, quiet_studio, device, path)
    page.wait_for_load_state("networkidle")

    assert page.evaluate("shift") <= MAX_SHIFT
    page.close()


def test_counts_follow_runs_while_list_is_open(browser: Browser, quiet_studio: Studio) -> None:
    engine = open_engine(quiet_studio.home / "studio.db")
    with unit_of_work(engine) as db:
        run = make_run(db)
    page = open_page(browser, quiet_studio, "desktop", "/")
    waiting = page.get_by_role("link", name="Queue")
    expect(waiting).to_have_accessible_name("Queue 1 waiting")
    expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
    with unit_of_work(engine) as db:
        states.move(db, db.merge(run), RunStatus.CANCELLED)
    engine.dispose()

    expect(waiting).to_have_accessible_name("Queue")
    page.close()
