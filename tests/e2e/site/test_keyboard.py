"""By keyboard alone: the palette, the shortcuts, where the focus goes, and the first tour."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect

from studio.db.session import open_engine, unit_of_work
from tests.support.factories import make_finished_run
from tests.support.live_studio import Studio, stop_everything

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def quiet_studio(starter_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    """Give all tests here one studio where nothing trains, with one run that is done."""
    studio = Studio.copied(starter_home, tmp_path_factory.mktemp("keys") / "home")
    studio.worker = False
    engine = open_engine(studio.home / "studio.db")
    with unit_of_work(engine) as db:
        make_finished_run(db, "a blue moon")
    engine.dispose()
    studio.start()
    yield studio
    stop_everything(studio)


@pytest.fixture
def keyed(browser: Browser, quiet_studio: Studio) -> Iterator[Page]:
    context = browser.new_context(
        base_url=quiet_studio.url, viewport={"width": 1280, "height": 800}, reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto("/settings")
    yield page
    context.close()


def go(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def violations(page: Page) -> list[tuple[str, str]]:
    return [(v["id"], v["nodes"][0]["html"][:200]) for v in Axe().run(page).response["violations"]]


def test_command_palette_opens_run_by_name(keyed: Page) -> None:
    go(keyed, "Control+k")
    expect(keyed.get_by_role("combobox", name="Search everything")).to_be_focused()
    keyed.keyboard.type("blue")
    expect(keyed.get_by_role("option", name="a blue moon")).to_have_count(2)
    expect(keyed.get_by_role("option", selected=True)).to_contain_text("#1, bf16, succeeded")
    go(keyed, "Enter")

    keyed.wait_for_url("**/runs/1")
    expect(keyed.get_by_role("heading", level=1)).to_be_focused()


def test_arrow_keys_select_in_palette_and_escape_closes_it(keyed: Page) -> None:
    go(keyed, "Control+k")
    options = keyed.locator("#palette-found [role=option]")
    expect(options.first).to_have_attribute("aria-selected", "true")
    go(keyed, "ArrowDown")
    expect(options.nth(1)).to_have_attribute("aria-selected", "true")
    go(keyed, "ArrowUp", "ArrowUp")
    expect(options.last).to_have_attribute("aria-selected", "true")
    go(keyed, "Escape")

    expect(keyed.locator("#palette")).to_be_hidden()


def test_palette_changes_theme(keyed: Page) -> None:
    before = keyed.evaluate("getComputedStyle(document.body).backgroundColor")
    go(keyed, "Control+k")
    keyed.keyboard.type("theme")
    expect(keyed.locator("#palette-found [role=option]")).to_have_count(1)
    go(keyed, "Enter")

    assert keyed.evaluate("getComputedStyle(document.body).backgroundColor") != before


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_dialogs_are_accessible(keyed: Page, theme: str) -> None:
    keyed.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    go(keyed, "Control+k")
    expect(keyed.get_by_role("option").first).to_be_visible()
    assert violations(keyed) == []
    go(keyed, "Escape", "?")
    expect(keyed.get_by_text("Go to Runs", exact=True)).to_be_visible()

    assert violations(keyed) == []


@pytest.mark.parametrize(
    ("key", "path"), [("r", "/"), ("n", "/new"), ("d", "/datasets"), ("q", "/queue")]
)
def test_g_shortcuts_open_pages(keyed: Page, key: str, path: str) -> None:
    go(keyed, "g", key)

    keyed.wait_for_url(re.compile(re.escape(path) + "$"))
    expect(keyed.get_by_role("heading", level=1)).to_be_focused()


def test_slash_focuses_page_search(keyed: Page) -> None:
    keyed.goto("/help")
    go(keyed, "/")
    keyed.keyboard.type("patience")

    expect(keyed.locator("#q")).to_have_value("patience")
    expect(keyed.locator("#found").get_by_role("link", name="Patience")).to_be_visible()


def test_shortcuts_are_ignored_while_typing_in_field(keyed: Page) -> None:
    keyed.goto("/help")
    keyed.locator("#q").fill("")
    keyed.locator("#q").press_sequentially("g q ?")

    expect(keyed.locator("#q")).to_have_value("g q ?")
    assert "/help" in keyed.url
    expect(keyed.locator("#keys")).to_be_hidden()


def test_single_key_shortcuts_can_be_disabled(keyed: Page) -> None:
    keyed.get_by_label("Enable single-key shortcuts in this browser").first.uncheck()
    keyed.reload()
    expect(
        keyed.get_by_label("Enable single-key shortcuts in this browser").first
    ).not_to_be_checked()
    go(keyed, "?", "g", "q", "Control+k")
    expect(keyed.locator("#palette")).to_be_visible()

    expect(keyed.locator("#keys")).to_be_hidden()
    assert keyed.url.endswith("/settings")


def take_tour(page: Page) -> Locator:
    page.goto("/")
    page.get_by_role("button", name="Look around first").click()
    return page.get_by_role("dialog")


def test_tour_ends_in_an_action_and_is_offered_once(page: Page) -> None:
    tour = take_tour(page)
    titles = []
    for _ in range(3):
        expect(tour.get_by_role("button", name="Next")).to_be_focused()
        titles.append(tour.get_by_role("heading").inner_text())
        go(page, "Enter")
    expect(tour.get_by_role("button", name="Start the quick try")).to_be_focused()
    titles.append(tour.get_by_role("heading").inner_text())
    tour.get_by_role("link", name="Set up a run").click()

    page.wait_for_url("**/new")
    page.goto("/")
    expect(page.get_by_role("button", name="Try it")).to_be_visible()
    expect(page.get_by_role("button", name="Look around first")).to_be_hidden()
    assert len(set(titles)) == 4


def test_tour_can_be_skipped_and_repeated(page: Page) -> None:
    take_tour(page)
    expect(page.get_by_role("dialog")).to_be_visible()
    assert violations(page) == []
    go(page, "Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.goto("/help")
    page.get_by_role("button", name="Take the tour").click()

    expect(page.get_by_role("dialog")).to_be_visible()


def test_last_step_of_tour_starts_quick_try(page: Page) -> None:
    tour = take_tour(page)
    expect(tour.get_by_role("button", name="Next")).to_be_focused()
    go(page, "Enter", "Enter", "Enter")
    expect(tour.get_by_role("button", name="Start the quick try")).to_be_focused()
    go(page, "Enter")

    page.wait_for_url(re.compile(r"/runs/\d+$"))
