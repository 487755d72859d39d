"""Comparing, as a person does it: live, by pointer and keys, zoomed, brushed, saved, printed."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from sqlalchemy import Engine

from studio.db.session import open_engine, unit_of_work
from studio.db.states import RunStatus
from studio.protocols.events import Sampled
from studio.services.runs import attempts, runs, states
from tests.support.browser_tabs import look
from tests.support.factories import make_finished_run, make_running, metrics_event
from tests.support.live_studio import Studio, stop_everything
from tests.support.print_layout import emulate_print, expect_readable_print
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

STEPS = 60
FAR_OUT = (2, 30)
"""The run, and its step, whose loss is far from all others."""
RUNS = "/compare?runs=1,2,3"
RAW, SMOOTH = "rgba(0, 122, 90, 0.3)", "#007a5a"
"""How the second run is drawn."""

LISTEN = """
window.drawn = [];
const canvas = CanvasRenderingContext2D.prototype;
for (const [how, what] of [["stroke", "strokeStyle"], ["fillText", ""]]) {
    const draw = canvas[how];
    canvas[how] = function (...given) {
        const chart = this.canvas.closest("[data-chart]")?.dataset.chart;
        drawn.push([chart, how, what ? this[what] : given[0]]);
        return draw.apply(this, given);
    };
}
"""
"""Has a page note in what colours lines are drawn on its charts, and which texts."""


@pytest.fixture
def watched(starter_home: Path, tmp_path: Path) -> Iterator[tuple[Studio, Engine]]:
    """Give a studio without a worker, whose runs tell what a test lets them tell."""
    with living(starter_home, tmp_path / "home") as made:
        yield made


@pytest.fixture(scope="module")
def quiet(starter_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    """Give all tests that only look one such studio."""
    with living(starter_home, tmp_path_factory.mktemp("quiet") / "home") as (studio, _engine):
        yield studio


@contextmanager
def living(home: Path, to: Path) -> Iterator[tuple[Studio, Engine]]:
    studio = Studio.copied(home, to)
    studio.worker = False
    engine = open_engine(studio.home / "studio.db")
    with unit_of_work(engine) as db:
        for number, precision in enumerate(("bf16", "fp32", "fp16"), 1):
            run = make_running(db, f"try {number}", precision=precision)
            told = [
                metrics_event(step, loss=loss_of(number, step), eval_loss=float(number))
                for step in range(1, STEPS + 1)
            ]
            attempts.apply_events(db, run, [*told, answer(number)], 1)
    studio.start()
    try:
        yield studio, engine
    finally:
        stop_everything(studio)
        engine.dispose()


def loss_of(number: int, step: int) -> float:
    return 900.0 if (number, step) == FAR_OUT else number + 1 / step


def answer(number: int) -> Sampled:
    """Say more than is shown at first."""
    about = {"stage": "during", "step": STEPS, "position": 0, "prompt": "?", "reference": "!"}
    return Sampled.model_validate(about | {"answer": f"{number} it is. " + "So it is. " * 200})


@pytest.fixture
def compared(browser: Browser, watched: tuple[Studio, Engine]) -> Iterator[Page]:
    """Open runs that tell more."""
    yield from opened(browser, watched[0])


@pytest.fixture
def laid_out(browser: Browser, quiet: Studio) -> Iterator[Page]:
    """Open runs that tell nothing more."""
    yield from opened(browser, quiet)


def opened(browser: Browser, studio: Studio) -> Iterator[Page]:
    context = browser.new_context(
        base_url=studio.url, viewport={"width": 1280, "height": 900}, reduced_motion="reduce"
    )
    context.set_default_timeout(120_000)
    context.add_init_script(LISTEN)
    page = context.new_page()
    page.goto(RUNS)
    expect(loss(page)).to_have_attribute("data-points", str(STEPS))
    yield page
    context.close()


def drawn(page: Page, how: str) -> list[str]:
    """Return what was drawn on the chart of the loss."""
    noted: list[tuple[str, str, str]] = page.evaluate("drawn")
    return [what for chart, by, what in noted if (chart, by) == ("loss", how)]


def last_drawn(page: Page, how: str) -> list[str]:
    """Return the same of the last whole drawing, which ends with the smoothed line."""
    noted = [(by, what) for chart, by, what in page.evaluate("drawn") if chart == "loss"]
    ends = [at for at, one in enumerate(noted) if one == ("stroke", SMOOTH)]
    first, last = [-1, *ends][-2:]
    return [what for by, what in noted[first + 1 : last + 1] if by == how]


def loss(page: Page) -> Locator:
    return page.get_by_role("application", name=re.compile("^Training loss"))


def spoken(page: Page) -> Locator:
    return loss(page).locator("xpath=..").locator(".read")


def values_of(page: Page) -> Locator:
    """Return the table of values at the pointer, on the chart of the loss."""
    return loss(page).locator("xpath=..").locator(".values")


def tell(engine: Engine, number: int, first: int, count: int) -> None:
    with unit_of_work(engine) as db:
        run = runs.get(db, number)
        told = [metrics_event(step, loss=9.0) for step in range(first, first + count)]
        attempts.apply_events(db, run, told, run.events_offset)


def test_curves_grow_while_runs_train(compared: Page, watched: tuple[Studio, Engine]) -> None:
    expect(compared.get_by_role("status").filter(has_text="Live")).to_be_visible()
    tell(watched[1], 2, STEPS + 1, 5)
    expect(loss(compared)).to_have_attribute("data-points", str(STEPS + 5))

    loss(compared).focus()
    loss(compared).press("End")
    expect(spoken(compared)).to_contain_text(re.compile(rf"step {STEPS + 5}: .*float32 9"))


def test_hidden_tabs_pause_and_catch_up_when_shown(
    browser: Browser, watched: tuple[Studio, Engine]
) -> None:
    context = browser.new_context(base_url=watched[0].url)
    tabs = [context.new_page() for _ in range(7)]
    for tab in tabs:
        tab.clock.install()
        tab.goto(RUNS)
        expect(tab.get_by_text("Live", exact=True)).to_be_visible()
        if tab is not tabs[-1]:
            look(tab, away=True)
            tab.clock.fast_forward(6000)
            expect(tab.get_by_text("Paused", exact=True)).to_be_visible()
    tell(watched[1], 2, STEPS + 1, 5)
    expect(loss(tabs[-1])).to_have_attribute("data-points", str(STEPS + 5))
    look(tabs[0], away=False)

    expect(loss(tabs[0])).to_have_attribute("data-points", str(STEPS + 5))
    context.close()


def test_pointer_shows_values_of_all_lines(laid_out: Page) -> None:
    room = loss(laid_out).locator(".u-over").bounding_box()
    assert room is not None
    values = values_of(laid_out)
    other = laid_out.locator("[data-chart=eval_loss]")
    # A chart that is drawn later shows the next place.
    expect(other.locator(".u-over")).to_have_count(1)
    laid_out.mouse.move(room["x"] + room["width"] - 1, room["y"] + room["height"] / 2)

    expect(values.locator("strong")).to_have_text(f"Step {STEPS}")
    expect(values.locator("span")).to_have_text(
        ["float16 #33.017", "float32 #22.017", "bfloat16 #11.017"]
    )
    # The other charts stand at the same place.
    expect(other.locator(".read")).to_have_text(f"step {STEPS}: float16 3, float32 2, bfloat16 1")
    laid_out.mouse.move(0, 0)
    expect(values).to_have_count(0)


def test_smoothed_line_overlays_raw_line_and_outliers_are_clipped(laid_out: Page) -> None:
    def highest() -> float:
        texts = last_drawn(laid_out, "fillText")
        ticks = [one.replace(",", "") for one in texts]
        return max(float(one) for one in ticks if one.replace(".", "").isdecimal())

    wait_until(lambda: SMOOTH in drawn(laid_out, "stroke"))
    before = highest()
    laid_out.get_by_label("Clip outliers").check()
    # A drawing from before the click may still come.
    wait_until(lambda: highest() == STEPS)

    lines = [one for one in last_drawn(laid_out, "stroke") if one in {RAW, SMOOTH}]
    assert lines == [RAW, SMOOTH]
    assert before > 500


def test_printed_comparison_is_complete_and_readable(laid_out: Page) -> None:
    laid_out.emulate_media(color_scheme="dark")
    charts = laid_out.locator("[data-chart]").count()
    rest = laid_out.locator("#answers .rest .words").first
    expect(rest).to_be_hidden()
    laid_out.evaluate("drawn.length = 0")
    emulate_print(laid_out)

    expect(laid_out.locator("[data-chart] canvas")).to_have_count(charts)
    wait_until(lambda: SMOOTH in drawn(laid_out, "stroke"))
    expect(rest).to_be_visible()
    expect(laid_out.get_by_role("region", name="Runs compared")).to_contain_text("try 2")
    expect_readable_print(laid_out)


def test_chart_can_be_read_by_keyboard(laid_out: Page) -> None:
    chart = loss(laid_out)
    chart.focus()
    chart.press("Home")
    expect(spoken(laid_out)).to_have_text("step 1: float16 4, float32 3, bfloat16 2")
    chart.press("ArrowDown")
    expect(spoken(laid_out)).to_have_text("step 1: float16 4, 1 of 3")
    chart.press("ArrowDown")
    chart.press("ArrowRight")
    expect(spoken(laid_out)).to_have_text("step 2: float32 2.5, 2 of 3")


def test_zoom_stays_while_metrics_stream(compared: Page, watched: tuple[Studio, Engine]) -> None:
    box = loss(compared).bounding_box()
    assert box is not None
    compared.mouse.move(box["x"] + 150, box["y"] + 100)
    compared.mouse.down()
    compared.mouse.move(box["x"] + 250, box["y"] + 100, steps=5)
    compared.mouse.up()
    expect(compared.get_by_role("button", name="Reset zoom").first).to_be_visible()
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


def test_zoomed_chart_loads_more_points(compared: Page, watched: tuple[Studio, Engine]) -> None:
    tell(watched[1], 1, STEPS + 1, 4000)
    compared.goto(RUNS)
    expect(loss(compared)).to_have_attribute("data-points", re.compile(r"^\d{3,4}$"))
    whole = int(loss(compared).get_attribute("data-points") or 0)
    compared.goto(f"{RUNS}&zoom=1000..1040")
    expect(loss(compared)).to_have_attribute("data-seen", "1000..1040")
    zoomed = int(loss(compared).get_attribute("data-points") or 0)

    # Of the buckets of the whole axis ten lay in the part that has 41 points now.
    assert (whole > 900, zoomed - whole) == (True, 31)


def test_brush_filters_runs_and_can_be_reset(laid_out: Page) -> None:
    laid_out.get_by_role("button", name="Parallel coordinates").click()
    brush = laid_out.get_by_role("slider", name=re.compile("^Brush on Validation loss"))
    brush.focus()
    for key in ("ArrowUp", "ArrowUp", "ArrowUp", "ArrowUp", "ArrowUp"):
        brush.press(key)
    expect(laid_out.get_by_text("2 of 3 runs are inside the brush.")).to_be_visible()
    expect(laid_out.locator("li[data-of='1']")).to_be_hidden()
    expect(laid_out.locator("li[data-of='2']")).to_be_visible()
    laid_out.reload()
    expect(laid_out.locator("li[data-of='1']")).to_be_hidden()

    laid_out.get_by_role("button", name="Show all").click()
    expect(laid_out.locator("li[data-of='1']")).to_be_visible()
    laid_out.get_by_role("button", name="Scatter").click()
    low = laid_out.get_by_role("slider", name="Training loss, from")
    low.press("End")
    expect(laid_out.get_by_text("1 of 3 runs are inside the brush.")).to_be_visible()
    low.press("Home")
    expect(laid_out.locator("li[data-of='1']")).to_be_visible()


def test_saved_comparison_keeps_view(laid_out: Page) -> None:
    laid_out.get_by_label("Show run 3, try 3").uncheck()
    laid_out.get_by_label("Log y").check()
    laid_out.get_by_role("button", name="Save", exact=True).click()
    laid_out.get_by_label("Name", exact=True).fill("Two of three")
    laid_out.get_by_label("Description").fill("The third is left out.")
    laid_out.get_by_role("dialog").get_by_role("button", name="Save").click()

    expect(laid_out.get_by_role("heading", level=1)).to_have_text("Two of three")
    expect(laid_out.locator(".note-text")).to_have_text("The third is left out.")
    expect(laid_out.get_by_label("Show run 3, try 3")).not_to_be_checked()
    expect(laid_out.get_by_label("Log y")).to_be_checked()


def test_values_stay_pinned_until_escape(laid_out: Page) -> None:
    loss(laid_out).locator(".u-over").click(position={"x": 1, "y": 60})
    laid_out.mouse.move(0, 0)
    expect(values_of(laid_out).locator("strong")).to_contain_text("Step 1")
    loss(laid_out).press("Escape")
    expect(values_of(laid_out)).to_have_count(0)

    loss(laid_out).press("End")
    loss(laid_out).press("Enter")
    expect(values_of(laid_out).locator("strong")).to_contain_text(f"Step {STEPS}")
    values_of(laid_out).get_by_role("button", name="Unpin these values").click()
    expect(values_of(laid_out)).to_have_count(0)


def test_chart_zooms_by_keyboard_and_by_its_menu(laid_out: Page) -> None:
    reset = laid_out.locator("[data-chart=loss]").get_by_role("button", name="Reset zoom")
    expect(reset).to_be_hidden()
    loss(laid_out).press("+")
    expect(loss(laid_out)).to_have_attribute("data-seen", "15.75..45.25")
    options(laid_out).click()
    laid_out.locator("[data-chart=loss]").get_by_role("button", name="Zoom in").click()
    expect(loss(laid_out)).to_have_attribute("data-seen", "23.125..37.875")

    reset.click()
    expect(loss(laid_out)).to_have_attribute("data-seen", f"1..{STEPS}")
    expect(reset).to_be_hidden()


def test_legend_hides_line_in_all_charts(laid_out: Page) -> None:
    entry = laid_out.locator("[data-chart=loss] [data-toggle='3']")
    entry.uncheck()
    expect(laid_out.locator("[data-toggle='3']:not(:checked)")).to_have_count(2)
    expect(laid_out.locator("[data-show='3']")).not_to_be_checked()
    assert "hide=3" in laid_out.url

    entry.check()
    expect(laid_out.locator("[data-show='3']")).to_be_checked()


def test_best_validation_is_marked_with_its_value(laid_out: Page) -> None:
    def texts() -> list[str]:
        noted: list[tuple[str, str, str]] = laid_out.evaluate("drawn")
        return [what for chart, by, what in noted if (chart, by) == ("eval_loss", "fillText")]

    wait_until(lambda: "Validation loss (nats/token)" in texts())
    # The best of all is on the edge of an axis from 1 to 3, where only 1.5 and so on have lines.
    assert "1" in texts()


def options(page: Page) -> Locator:
    return page.locator("[data-chart=loss] .chart-menu > summary")


def test_chart_can_be_shown_as_table_and_saved(laid_out: Page) -> None:
    card = laid_out.locator("[data-chart=loss]")
    options(laid_out).click()
    card.get_by_role("button", name="Table").click()
    table = card.get_by_role("region", name="Training loss as a table")
    expect(table.get_by_role("row").first).to_have_text(
        re.compile("Step.*bfloat16.*float32.*float16")
    )
    kept = {kind: saved(laid_out, kind) for kind in ("PNG", "SVG", "CSV")}

    assert kept["PNG"][:4] == b"\x89PNG"
    assert b"Training loss (nats/token)" in kept["SVG"]
    assert kept["CSV"].decode().splitlines()[:2] == ["step,bfloat16,float32,float16", "1,2,3,4"]


@pytest.mark.parametrize("plot", ["Scatter", "Parallel coordinates"])
def test_settings_vs_results_are_saved(laid_out: Page, plot: str) -> None:
    part = laid_out.locator("[data-drawing=settings-and-results]")
    menu = part.locator(".chart-menu")
    expect(menu).to_be_hidden()
    part.get_by_role("button", name=plot).click()
    files = {}
    for kind in ("CSV", "SVG"):
        menu.locator("summary").click()
        with laid_out.expect_download() as kept:
            menu.get_by_role("button", name=f"Save as {kind}").click()
        files[kind] = Path(kept.value.path()).read_text(encoding="utf-8")

    heads, *rows = files["CSV"].splitlines()
    assert heads.startswith("Run,precision,")
    assert rows[0].startswith("bfloat16 #1,bf16,")
    assert [files["SVG"].count(f">{name}</text>") for name in ("bfloat16", "float16")] == [1, 1]


def test_overlapping_curves_lead_to_their_differences(laid_out: Page) -> None:
    card = laid_out.locator("[data-chart=loss]")
    card.get_by_role("button", name="Curves overlap: show the difference").click()
    expect(loss(laid_out)).to_be_focused()
    expect(laid_out.locator("[data-shape-words]")).to_contain_text("a run minus bfloat16 #1")
    loss(laid_out).press("Home")
    expect(spoken(laid_out)).to_have_text("step 1: float16 +2, float32 +1, bfloat16 0")
    expect(card.locator("[data-overlap]")).to_be_hidden()
    svg, csv = (saved(laid_out, kind, "loss-difference").decode() for kind in ("SVG", "CSV"))
    assert "minus bfloat16 #1 (nats/token)" in svg
    assert csv.splitlines()[1] == "1,0,1,2"

    laid_out.reload()
    expect(shape(laid_out)).to_have_value("difference")
    expect(laid_out.get_by_label("Log y")).to_be_disabled()
    laid_out.get_by_label("Run 3, try 3, as baseline").check()
    expect(laid_out.locator("[data-shape-words]")).to_contain_text("a run minus float16 #3")
    assert "curves=difference" in laid_out.url


def test_curves_moved_apart_keep_their_values(laid_out: Page) -> None:
    shape(laid_out).focus()
    laid_out.keyboard.press("End")
    expect(laid_out.locator("[data-shape-words]")).to_contain_text("do not read the y axis")
    assert "curves=offset" in laid_out.url
    loss(laid_out).focus()
    loss(laid_out).press("Home")
    expect(spoken(laid_out)).to_have_text("step 1: float16 4, float32 3, bfloat16 2")
    svg, csv = (saved(laid_out, kind, "loss-offset").decode() for kind in ("SVG", "CSV"))

    assert "moved apart, not to scale" in svg
    assert csv.splitlines()[1] == "1,2,3,4"


def shape(page: Page) -> Locator:
    return page.get_by_role("combobox", name="Curves")


def saved(page: Page, kind: str, name: str = "loss") -> bytes:
    """Save the chart of the loss by its menu."""
    menu = page.locator("[data-chart=loss] .chart-menu")
    if menu.get_attribute("open") is None:
        options(page).click()
    with page.expect_download() as kept:
        menu.get_by_role("button", name=f"Save as {kind}").click()
    assert kept.value.suggested_filename == f"{name}.{kind.lower()}"
    return Path(kept.value.path()).read_bytes()


@pytest.fixture
def unsure(starter_home: Path, tmp_path: Path) -> Iterator[tuple[Studio, Engine]]:
    """Give a studio with two finished runs, one seed each."""
    studio = Studio.copied(starter_home, tmp_path / "home")
    studio.worker = False
    engine = open_engine(studio.home / "studio.db")
    with unit_of_work(engine) as db:
        for precision, loss in (("bf16", 1.5), ("fp32", 1.2)):
            run = make_finished_run(db, f"in {precision}", precision=precision)
            attempts.apply_events(db, run, [metrics_event(11, eval_loss=loss)], 2000)
    studio.start()
    try:
        yield studio, engine
    finally:
        stop_everything(studio)
        engine.dispose()


def finish(engine: Engine, losses: dict[str, list[float]]) -> None:
    """Let queued runs end with these validation losses, by precision."""
    with unit_of_work(engine) as db:
        for number in range(3, 7):
            run = runs.get(db, number)
            states.move(db, run, RunStatus.STARTING)
            states.move(db, run, RunStatus.RUNNING)
            loss = losses[run.recipe.precision].pop()
            attempts.apply_events(db, run, [metrics_event(11, loss=2.0, eval_loss=loss)], 2000)
            states.move(db, run, RunStatus.SUCCEEDED)


def test_two_more_seeds_make_verdict_firm(browser: Browser, unsure: tuple[Studio, Engine]) -> None:
    studio, engine = unsure
    context = browser.new_context(base_url=studio.url, reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto("/compare?runs=1,2")
    headline = page.locator("#verdict-title")
    expect(headline).to_contain_text("float32 is ahead by 20 %")
    page.get_by_role("button", name="Add two seeds to be sure").click()

    expect(headline).to_contain_text("has not finished yet, so there is no verdict.")
    expect(page.locator("li[data-of]")).to_have_count(6)
    finish(engine, {"bf16": [1.51, 1.49], "fp32": [1.21, 1.19]})
    page.reload()
    expect(headline).to_contain_text("float32 is better than bfloat16, beyond seed noise.")
    expect(page.get_by_role("button", name="Add two seeds")).to_have_count(0)
    context.close()
