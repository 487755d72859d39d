"""Comparing, as a person does it: live, by keyboard, zoomed, brushed, saved."""

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from sqlalchemy import Engine

from studio.db.session import connect, unit_of_work
from studio.services import attempts, runs
from tests.factories import make_running, progressed
from tests.living import Studio, stop_everything

pytestmark = pytest.mark.e2e

STEPS = 60
RUNS = "/compare?runs=1,2,3"


@pytest.fixture
def watched(starter_home: Path, tmp_path: Path) -> Iterator[tuple[Studio, Engine]]:
    """Give a studio without a worker, whose runs tell what a test lets them tell."""
    studio = Studio.copied(starter_home, tmp_path / "home")
    studio.worker = False
    engine = connect(studio.home / "studio.db")
    with unit_of_work(engine) as db:
        for number, precision in enumerate(("bf16", "fp32", "fp16"), 1):
            run = make_running(db, f"try {number}", precision=precision)
            told = [
                progressed(step, loss=number + 1 / step, eval_loss=float(number))
                for step in range(1, STEPS + 1)
            ]
            attempts.follow(db, run, told, 1)
    studio.start()
    yield studio, engine
    stop_everything(studio)
    engine.dispose()


@pytest.fixture
def compared(browser: Browser, watched: tuple[Studio, Engine]) -> Iterator[Page]:
    context = browser.new_context(
        base_url=watched[0].url, viewport={"width": 1280, "height": 900}, reduced_motion="reduce"
    )
    context.set_default_timeout(60_000)
    page = context.new_page()
    page.goto(RUNS)
    expect(loss(page)).to_have_attribute("data-points", str(STEPS))
    yield page
    context.close()


def loss(page: Page) -> Locator:
    return page.get_by_role("application", name=re.compile("^Training loss"))


def spoken(page: Page) -> Locator:
    return loss(page).locator("xpath=..").locator(".read")


def tell(engine: Engine, number: int, first: int, count: int) -> None:
    with unit_of_work(engine) as db:
        run = runs.get(db, number)
        told = [progressed(step, loss=9.0) for step in range(first, first + count)]
        attempts.follow(db, run, told, run.events_offset)


def test_curves_grow_while_runs_train(compared: Page, watched: tuple[Studio, Engine]) -> None:
    expect(compared.get_by_role("status").filter(has_text="Live")).to_be_visible()
    tell(watched[1], 2, STEPS + 1, 5)
    expect(loss(compared)).to_have_attribute("data-points", str(STEPS + 5))

    loss(compared).focus()
    loss(compared).press("End")
    expect(spoken(compared)).to_contain_text(re.compile(rf"step {STEPS + 5}: .*try 2 9"))


def look(tab: Page, *, away: bool) -> None:
    """Turn to a tab or away from it, as its page is told by the browser."""
    tab.evaluate(
        """away => {
            Object.defineProperty(document, "hidden", { configurable: true, get: () => away });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        away,
    )


def test_of_seven_tabs_the_hidden_make_room_and_catch_up(
    browser: Browser, watched: tuple[Studio, Engine]
) -> None:
    context = browser.new_context(base_url=watched[0].url)
    tabs = [context.new_page() for _ in range(7)]
    for tab in tabs:
        tab.clock.install()
        tab.goto(RUNS)
        expect(tab.get_by_text("Live", exact=True)).to_be_visible(timeout=60_000)
        if tab is not tabs[-1]:
            look(tab, away=True)
            tab.clock.fast_forward(6000)
            expect(tab.get_by_text("Paused", exact=True)).to_be_visible()
    tell(watched[1], 2, STEPS + 1, 5)
    expect(loss(tabs[-1])).to_have_attribute("data-points", str(STEPS + 5))
    look(tabs[0], away=False)

    expect(loss(tabs[0])).to_have_attribute("data-points", str(STEPS + 5))
    context.close()


def test_a_chart_is_read_by_keyboard_line_by_line(compared: Page) -> None:
    chart = loss(compared)
    chart.focus()
    chart.press("Home")
    expect(spoken(compared)).to_have_text("step 1: try 3 4, try 2 3, try 1 2")
    chart.press("ArrowDown")
    expect(spoken(compared)).to_have_text("step 1: try 3 4, 1 of 3")
    chart.press("ArrowDown")
    chart.press("ArrowRight")
    expect(spoken(compared)).to_have_text("step 2: try 2 2.5, 2 of 3")


def test_the_zoom_stays_while_numbers_stream(
    compared: Page, watched: tuple[Studio, Engine]
) -> None:
    box = loss(compared).bounding_box()
    assert box is not None
    compared.mouse.move(box["x"] + 150, box["y"] + 100)
    compared.mouse.down()
    compared.mouse.move(box["x"] + 250, box["y"] + 100, steps=5)
    compared.mouse.up()
    expect(compared.get_by_role("button", name="Show the whole axis")).to_be_visible()
    zoomed = compared.url
    tell(watched[1], 1, STEPS + 1, 5)
    expect(loss(compared)).to_have_attribute("data-points", str(STEPS + 5))

    assert re.search(r"zoom=[\d.]+\.\.[\d.]+", zoomed)
    assert compared.url == zoomed
    last = loss(compared).evaluate("host => host.dataset.seen")
    low, high = (float(one) for one in zoomed.partition("zoom=")[2].split("&")[0].split(".."))
    assert [math.floor(float(one)) for one in last.split("..")] == [
        math.floor(low),
        math.floor(high),
    ]


def test_a_zoom_shows_more_than_the_whole_did(
    compared: Page, watched: tuple[Studio, Engine]
) -> None:
    tell(watched[1], 1, STEPS + 1, 4000)
    compared.goto(RUNS)
    expect(loss(compared)).to_have_attribute("data-points", re.compile(r"^\d{3,4}$"))
    whole = int(loss(compared).get_attribute("data-points") or 0)
    compared.goto(f"{RUNS}&zoom=1000..1040")
    expect(loss(compared)).to_have_attribute("data-seen", "1000..1040")
    zoomed = int(loss(compared).get_attribute("data-points") or 0)

    # Of the buckets of the whole axis ten lay in the part that has 41 points now.
    assert (whole > 900, zoomed - whole) == (True, 31)


def test_a_brush_filters_the_runs_and_is_lifted(compared: Page) -> None:
    compared.get_by_role("button", name="Parallel coordinates").click()
    brush = compared.get_by_role("slider", name=re.compile("^Brush on Validation loss"))
    brush.focus()
    for key in ("ArrowUp", "ArrowUp", "ArrowUp", "ArrowUp", "ArrowUp"):
        brush.press(key)
    expect(compared.get_by_text("2 of 3 runs are inside the brush.")).to_be_visible()
    expect(compared.locator("li[data-of='1']")).to_be_hidden()
    expect(compared.locator("li[data-of='2']")).to_be_visible()
    compared.reload()
    expect(compared.locator("li[data-of='1']")).to_be_hidden()

    compared.get_by_role("button", name="Show all").click()
    expect(compared.locator("li[data-of='1']")).to_be_visible()
    compared.get_by_role("button", name="Scatter").click()
    low = compared.get_by_role("slider", name="Training loss, from")
    low.press("End")
    expect(compared.get_by_text("1 of 3 runs are inside the brush.")).to_be_visible()
    low.press("Home")
    expect(compared.locator("li[data-of='1']")).to_be_visible()


def test_what_is_shown_is_saved_and_opened_again(compared: Page) -> None:
    compared.get_by_label("Show run 3, try 3").uncheck()
    compared.get_by_label("Log y").check()
    compared.get_by_role("button", name="Save", exact=True).click()
    compared.get_by_label("Name", exact=True).fill("Two of three")
    compared.get_by_label("What it shows").fill("The third is left out.")
    compared.get_by_role("dialog").get_by_role("button", name="Save").click()

    expect(compared.get_by_role("heading", level=1)).to_have_text("Two of three")
    expect(compared.locator(".said-text")).to_have_text("The third is left out.")
    expect(compared.get_by_label("Show run 3, try 3")).not_to_be_checked()
    expect(compared.get_by_label("Log y")).to_be_checked()


def test_a_chart_is_shown_as_a_table_and_kept_as_a_picture(compared: Page) -> None:
    card = compared.locator("[data-chart=loss]")
    card.get_by_role("button", name="Table").click()
    table = card.get_by_role("region", name="Training loss as a table")
    expect(table.get_by_role("row").first).to_have_text(re.compile("step.*try 1.*try 2.*try 3"))
    with compared.expect_download() as kept:
        card.get_by_role("button", name=re.compile("PNG")).click()

    assert kept.value.suggested_filename == "loss.png"
    assert Path(kept.value.path()).read_bytes()[:4] == b"\x89PNG"
