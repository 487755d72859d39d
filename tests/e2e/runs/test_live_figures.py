"""The figures of a run in a real browser: live from step 0, and the same in every place."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from studio.methods import METHODS
from studio.web.i18n import formatting
from studio.web.i18n import locale as page_locale
from tests.support.live_studio import Studio, get_run, submit_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

LONG = 100_000
DASH = formatting.NO_VALUE
OF_RUN = METHODS["sft"].metrics.all
TILES = [spec.key for spec in OF_RUN if spec.tile == "always"]
RESULT_TILES = [spec.key for spec in OF_RUN if spec.tile == "result"]
Figures = dict[str, str]

READ = """places => places.map((place) => Object.fromEntries(
  [...place.querySelectorAll("[data-put]")].map((spot) => [spot.dataset.put, spot.textContent])))"""

WRITE = """pairs => import("/static/js/i18n/formatting.js")
  .then(({ measure }) => pairs.map((pair) => measure(...pair)))"""
CHANGE = WRITE.replace("measure", "change")

ROWS = """(place, count) => {
  const copy = place.cloneNode();
  const tile = place.querySelector(".tile:not([hidden])");
  for (let n = 0; n < count; n++) copy.append(tile.cloneNode(true), hidden());
  place.after(copy);
  const shares = [...copy.children].filter((one) => !one.hidden).reduce((rows, one) => {
    const { top, width } = one.getBoundingClientRect();
    rows.set(top, (rows.get(top) ?? 0) + width / copy.clientWidth);
    return rows;
  }, new Map());
  copy.remove();
  return [...shares.values()];
  function hidden() {
    const one = tile.cloneNode(true);
    one.hidden = true;
    return one;
  }
}"""
"""What share of each row is filled by so many tiles, with a hidden one after each."""
LEAST_SHARE = 0.45
"""Of a row: two tiles of four, less the gaps."""

VALUES = (0, 1, 0.5, 0.0002, 0.00005, -3e-7, 2.74849, 999.96, 1000.4, 12345.6, 1e9)
SIZES = (0, 999, 999.6, 1500, 999_600, 804_000_000, 7.25e12)
SPANS = (0, 3.04, 9.97, 12.4, 59.4, 60, 3599, 3600, 7322, 90_000)


@pytest.fixture
def number(studio: Studio) -> Iterator[int]:
    """Queue a run that trains for as long as a test looks at it."""
    number = submit_run(studio, max_steps=LONG)
    yield number
    studio.api.post(f"/runs/{number}/cancel")


@contextmanager
def opened(context: BrowserContext, path: str) -> Iterator[Page]:
    page = context.new_page()
    page.goto(path)
    yield page
    page.close()


def read(page: Page, place: str = "#outcome") -> Figures:
    """Read all figures of a place in one go: no event comes between two of them."""
    shown: list[Figures] = page.locator(place).evaluate_all(READ)
    return shown[0] if shown else {}


def step_shown(page: Page, place: str = "#outcome") -> int:
    step = read(page, place).get("step", "0").replace(",", "")
    return int(step) if step.isdecimal() else 0


def read_at(page: Page, place: str, least: int) -> Figures:
    """Read the figures of a place once they are those of a step, or of a later one."""
    wait_until(lambda: step_shown(page, place) >= least)
    return read(page, place)


def expected(studio: Studio, number: int) -> dict[str, list[Figures]]:
    """Ask the REST API for the figures of each step, written as pages write them.

    A step has two sets of figures: its training loss is written first, the evaluation that
    follows it a moment later. A page that is read between the two shows the first set.
    """
    params = {"keys": "loss,eval_loss,tokens_per_second", "buckets": 10_000}
    told = studio.api.get(f"/runs/{number}/metrics", params=params).raise_for_status().json()
    by_step: dict[str, list[Figures]] = {}
    known: Figures = {}
    for place, step in enumerate(told["x"]):
        sets = []
        for late in (False, True):
            for key, one in told["series"].items():
                if (key == "eval_loss") is late and (value := one["mean"][place]) is not None:
                    known[key] = formatting.metric_value(value, key)
            sets.append(dict(known))
        by_step[formatting.number(step)] = sets
    return by_step


def test_tiles_update_live_on_every_page(
    context: BrowserContext, studio: Studio, number: int
) -> None:
    places = {
        f"/runs/{number}": "#outcome",
        "/?cols=step,loss,eval_loss,tokens_per_second": f"tr[data-run='{number}']",
        "/": f"#running [data-run='{number}']",
        "/queue": f".card[data-run='{number}']",
    }
    seen: list[Figures] = []
    page = context.new_page()
    page.goto(f"/runs/{number}")
    first = page.locator("dl.figures").evaluate_all(READ)[0]
    assert [*first][: len(TILES)] == TILES
    wait_until(lambda: step_shown(page) >= 3)
    tabs = [(page, "#outcome")]
    for path, place in places.items():
        tab = context.new_page()
        tab.goto(path)
        tabs.append((tab, place))
    for tab, place in tabs:
        begun = step_shown(tab, place)
        seen.extend(read_at(tab, place, begun + further) for further in (1, 2, 3))

    wait_until(
        lambda: get_run(studio, number)["step"] > max(map(int, (one["step"] for one in seen)))
    )
    known = expected(studio, number)
    for shown in seen:
        assert any(
            shown == shown | {key: text for key, text in figures.items() if key in shown}
            for figures in known[shown["step"]]
        ), (shown, known[shown["step"]])
        assert "loss" in shown


def test_waiting_run_shows_dashes_in_tiles(
    page: Page, context: BrowserContext, studio: Studio, number: int
) -> None:
    page.goto(f"/runs/{number}")
    wait_until(lambda: get_run(studio, number)["status"] == "running")
    waiting = submit_run(studio, "waits", max_steps=5)
    with opened(context, f"/runs/{waiting}") as tab:
        shown = tab.locator("dl.figures").evaluate_all(READ)[0]
        studio.api.post(f"/runs/{waiting}/cancel").raise_for_status()

    assert [shown[name] for name in TILES] == [DASH] * len(TILES)


def test_tiles_resume_after_restart_and_match_api(
    page: Page, context: BrowserContext, studio: Studio, number: int
) -> None:
    page.goto(f"/runs/{number}")
    wait_until(lambda: step_shown(page) >= 3)
    studio.kill()
    studio.wait()
    studio.start()
    kept = get_run(studio, number)["step"]
    wait_until(lambda: step_shown(page) > kept + 2)
    studio.api.post(f"/runs/{number}/keep").raise_for_status()
    expect(page.locator("#head .status")).to_contain_text("succeeded")
    expect(page.locator("[data-put='train_seconds']")).to_be_visible()
    context.new_page().goto(f"/runs/{number}")

    told: dict[str, Any] = get_run(studio, number)["metrics"]
    names = [*TILES, *(one for one in RESULT_TILES if one in told)]
    for tab in context.pages:
        shown = read(tab)
        assert {name: shown[name] for name in names} == {
            name: formatting.metric_value(told[name], name) for name in names
        }


def test_comparison_shows_steps_live(page: Page, studio: Studio, number: int) -> None:
    other = submit_run(studio, "other", max_steps=2)
    page.goto(f"/compare?runs={number},{other}")
    chip = f".run-chip[data-of='{number}']"
    begun = step_shown(page, chip)
    wait_until(lambda: step_shown(page, chip) >= begun + 3)


@pytest.mark.parametrize("locale", ["en-GB", "zh-CN"])
def test_scripts_and_pages_format_numbers_alike(
    browser: Browser, studio: Studio, locale: str
) -> None:
    tag = "en" if locale == "en-GB" else "zh-Hans"
    context = browser.new_context(base_url=studio.url, locale=locale)
    page = context.new_page()
    page.goto("/help")
    pairs = [
        *((value, "loss") for value in VALUES),
        *((value, "peak_memory_bytes") for value in SIZES),
        *((value, "train_seconds") for value in SPANS),
        *((value, "lost_update_share") for value in (0, 0.12345, 1)),
    ]
    written = page.evaluate(WRITE, pairs)
    changes = [
        *((value, "loss") for value in (0.25, -0.00001, -8203.4)),
        *((value, "peak_memory_bytes") for value in (3e6, -3e9)),
        *((value, "lost_update_share") for value in (0.01, 1 / 3, -0.125)),
    ]
    written_changes = page.evaluate(CHANGE, changes)
    context.close()
    before = page_locale.current_language()
    page_locale.set_language(tag)
    wanted = [formatting.metric_value(value, name) for value, name in pairs]
    wanted_changes = [formatting.change(value, name) for value, name in changes]
    page_locale.set_language(before)

    assert written == wanted
    assert written_changes == wanted_changes


@pytest.mark.parametrize("width", [390, 1280])
def test_no_tile_stands_alone_in_a_row(context: BrowserContext, number: int, width: int) -> None:
    with opened(context, f"/runs/{number}") as page:
        page.set_viewport_size({"width": width, "height": 800})
        tiles = page.locator("#outcome dl.figures")
        expect(tiles).to_be_visible()

        rows = {count: tiles.evaluate(ROWS, count) for count in range(2, 13)}

    assert {count: shares for count, shares in rows.items() if shares[-1] < LEAST_SHARE} == {}
