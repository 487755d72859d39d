"""What holds for every page: readable by all, at any width, in both themes and languages."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect

from studio.db.session import open_engine, unit_of_work
from studio.db.states import RunStatus
from studio.protocols.events import Sampled
from studio.services import experiments
from studio.services.runs import attempts, run_commands, runs
from studio.services.studies import studies
from tests.support.control_overlaps import control_overlaps
from tests.support.factories import make_finished_run, make_running
from tests.support.live_studio import Studio, stop_everything
from tests.support.pages import FAILED, MAIN_PAGES, PAGES, furnish
from tests.support.touch_targets import small_targets
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

Scheme = Literal["light", "dark"]
LANGUAGES = {"en-GB": "en", "zh-CN": "zh-Hans"}
PHONE = 390
WIDTHS = (320, PHONE, 768, 1280, 1920)
"""The narrowest is a window of 1280 pixels at 400 % zoom (WCAG 1.4.10)."""
UNASKED = ("target-size", "label-content-name-mismatch")
"""What axe leaves out unless asked: targets of 24 pixels, and names that hold what is read."""
LOOKS: dict[str, list[tuple[Scheme, int, list[str]]]] = {
    "en-GB": [
        ("light", 1440, []),
        ("dark", 390, ["color-contrast", "target-size", "link-in-text-block"]),
    ],
    "zh-CN": [("light", 390, [])],
}
"""For each language themes, widths of windows, and rules; no rules are all of them.

What neither theme nor width can change is looked at once. Colours are the same in both languages.
"""
VIOLATIONS = "addEventListener('securitypolicyviolation', (e) => console.error(e.blockedURI))"

HEIGHTS = """[...document.querySelectorAll("main .bar")]
    .map((bar) => [...bar.querySelectorAll(":scope > .btn, :scope > .menu > .btn")]
      .filter((one) => one.offsetParent && !one.classList.contains("small"))
      .map((one) => one.offsetHeight))
    .filter((row) => row.length)"""

WIDTH_OF_NEXT_FRAME = """new Promise((tell) => {
  requestAnimationFrame(() =>
    requestAnimationFrame(() => tell(document.documentElement.scrollWidth)));
  setTimeout(tell, 20_000, null);
})"""
"""Charts follow the width of their place at the end of a frame, once it is laid out.

A window that a busy machine resized while it drew may never draw again: then this is null.
"""


@pytest.fixture(scope="module")
def furnished_studio(
    starter_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Studio]:
    """Give all tests here one studio with a run of each fate."""
    studio = Studio.copied(starter_home, tmp_path_factory.mktemp("pages") / "home")
    studio.development = True
    engine = open_engine(studio.home / "studio.db")
    with unit_of_work(engine) as db:
        for precision, loss in (("bf16", 2.01), ("fp32", 2.0)):
            run = make_finished_run(db, f"a run in {precision}", precision=precision)
            run.metrics = run.metrics | {"eval_loss": loss}
            attempts.apply_events(db, run, answers(), 1)
        failed = make_running(db, "a run that failed")
        attempts.fail(db, failed, FAILED)
        assert runs.get(db, 3).status is RunStatus.FAILED
        plan = studies.StudyPlan(modes=["fp32", "bf16"], seeds=1)
        study = studies.create(db, experiments.get(db, 1), plan)
        for run in studies.list_runs(db, study.id or 0):
            run_commands.cancel(db, run.id or 0)
        furnish(db, studio.home)
    engine.dispose()
    studio.start()
    wait_until(lambda: counted(studio))
    yield studio
    stop_everything(studio)


def counted(studio: Studio) -> bool:
    """Ask for the tokens of the first data set, and tell whether they are counted."""
    return studio.api.post("/datasets/1/stats", json={"model": "starter"}).status_code == 200


def answers() -> list[Sampled]:
    common = {"step": 10, "position": 0, "prompt": "Who?", "reference": "Me."}
    return [
        Sampled.model_validate(common | {"stage": stage, "answer": stage})
        for stage in ("before", "after")
    ]


# In the second language the same elements stand in other words: axe finds little else there.
@pytest.fixture(
    scope="module",
    params=["en-GB", "zh-CN"],
)
def tongue(
    request: pytest.FixtureRequest, browser: Browser, furnished_studio: Studio
) -> Iterator[BrowserContext]:
    """Give all tests in a language one context: making one costs more than most pages."""
    context = browser.new_context(
        base_url=furnished_studio.url, locale=request.param, reduced_motion="reduce"
    )
    context.add_init_script(VIOLATIONS)
    yield context
    context.close()


@pytest.fixture
def plain(tongue: BrowserContext) -> Iterator[Page]:
    page = tongue.new_page()
    yield page
    page.close()


@pytest.fixture
def themed(browser: Browser, furnished_studio: Studio) -> Iterator[Page]:
    context = browser.new_context(base_url=furnished_studio.url, reduced_motion="reduce")
    yield context.new_page()
    context.close()


# One load shows all of it: loads are what takes the time.
@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=[pytest.mark.smoke] * (path in MAIN_PAGES)) for path in PAGES]
)
def test_every_page_is_accessible_responsive_and_error_free(plain: Page, path: str) -> None:
    """It reads well in both themes, obeys its own policy, complains of nothing, and fits.

    It fits any width, and fingers.
    """
    complaints: list[str] = []
    hosts: set[str] = set()
    plain.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    plain.on("pageerror", lambda error: complaints.append(str(error)))
    plain.on("request", lambda asked: hosts.add(asked.url.split("/")[2]))
    plain.goto(path)
    plain.wait_for_load_state("load")

    assert plain.evaluate("document.documentElement.lang") == LANGUAGES[spoken(plain)]
    assert violations(plain) == []
    assert [width for width in WIDTHS if scrolls(plain, width)] == []
    assert [said for said in complaints if "404" not in said] == []
    assert len(hosts) == 1
    plain.set_viewport_size({"width": PHONE, "height": 844})
    assert small_targets(plain) == []
    assert control_overlaps(plain) == []
    assert not scrolls(plain, PHONE), "with all menus open"


@pytest.mark.parametrize("path", ["/experiments/1", "/runs/1", "/sweeps/1", "/models/1"])
def test_buttons_of_a_row_have_one_height(plain: Page, path: str) -> None:
    plain.set_viewport_size({"width": 1280, "height": 900})
    plain.goto(path)
    heights = plain.evaluate(HEIGHTS)

    assert heights
    assert [row for row in heights if len(set(row)) > 1] == []


def test_overlays_are_accessible(plain: Page) -> None:
    plain.goto("/help")
    for key, opened in (("Control+k", "#palette"), ("?", "#keys")):
        plain.keyboard.press(key)
        expect(plain.locator(opened)).to_be_visible()
        assert violations(plain) == []
        plain.keyboard.press("Escape")
        expect(plain.locator(opened)).to_be_hidden()


def test_playground_in_use_is_accessible(plain: Page) -> None:
    plain.goto("/playground?model=model:1&model=run:1&max_tokens.2=4&max_tokens=4")
    expect(plain.locator(".chat[data-booted=done]")).to_be_visible()
    plain.locator("[data-draft]").fill("What is a fox?")
    plain.keyboard.press("Enter")
    expect(plain.locator("[data-stop]")).to_be_hidden()
    plain.locator("[data-edit]").click()
    plain.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    assert violations(plain) == []
    assert small_targets(plain) == []
    for button, dialog in (("[data-code]", "#question-code"), ("[data-choose]", "#choose-model")):
        plain.locator(button).first.click()
        expect(plain.locator(f"{dialog} button").last).to_be_visible()
        assert violations(plain) == []
        plain.keyboard.press("Escape")
        expect(plain.locator(dialog)).to_be_hidden()


def test_all_experiment_settings_are_accessible(plain: Page) -> None:
    plain.goto("/new#settings")
    plain.locator("label:has(#view-all)").click()
    expect(plain.locator("[name='optimisation.weight_decay']")).to_be_visible()

    assert violations(plain) == []


def spoken(page: Page) -> str:
    """Return the language that a window asks for."""
    return str(page.evaluate("navigator.language"))


def violations(page: Page) -> list[tuple[str, str, str]]:
    """Return what keeps people out in each theme: the theme, the rule, and where."""
    found: list[tuple[str, str, str]] = []
    page.evaluate(Axe().axe_script)
    for scheme, width, rules in LOOKS[spoken(page)]:
        page.emulate_media(color_scheme=scheme)
        show_whole(page, width)
        asked = {"rules": {name: {"enabled": True} for name in UNASKED}}
        broken = page.evaluate(
            "(options) => axe.run({ resultTypes: ['violations'], ...options })",
            {"runOnly": rules} if rules else asked,
        )["violations"]
        found += [(scheme, one["id"], one["nodes"][0]["html"][:200]) for one in broken]
    return found


def show_whole(page: Page, width: int) -> None:
    """Make the window as high as the page, so that a bar at its foot covers nothing."""
    page.set_viewport_size({"width": width, "height": 900})
    height: int = page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size({"width": width, "height": height})


def scrolls(page: Page, width: int) -> bool:
    """Tell whether a page is wider than a window of this width."""
    for height in (800, 801, 802, 803):
        page.set_viewport_size({"width": width, "height": height})
        wide: int | None = page.evaluate(WIDTH_OF_NEXT_FRAME)
        if wide is not None:
            return wide > width
    raise AssertionError(f"The page draws nothing in a window of {width} pixels.")


def test_chosen_language_is_kept(browser: Browser, furnished_studio: Studio) -> None:
    context = browser.new_context(base_url=furnished_studio.url)
    page = context.new_page()
    page.goto("/queue")
    page.get_by_role("button", name="中文").click()
    expect(page.get_by_role("heading", name="队列", level=1)).to_be_visible()
    page.goto("/settings")
    expect(page.get_by_role("heading", name="设置", level=1)).to_be_visible()
    page.get_by_role("button", name="English").click()

    expect(page.get_by_role("heading", name="Settings", level=1)).to_be_visible()
    context.close()


@pytest.mark.parametrize("path", ["/", "/runs/1", "/compare?runs=1,2", "/datasets", "/settings"])
def test_pages_work_without_javascript(
    browser: Browser, furnished_studio: Studio, path: str
) -> None:
    context = browser.new_context(base_url=furnished_studio.url, java_script_enabled=False)
    page = context.new_page()
    page.goto(path)

    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_role("table").first).to_be_visible()
    context.close()


def test_relative_time_updates(browser: Browser, furnished_studio: Studio) -> None:
    context = browser.new_context(base_url=furnished_studio.url)
    page = context.new_page()
    page.goto("/datasets/1")
    spot = page.locator("time").first
    made = datetime.fromisoformat(spot.get_attribute("datetime") or "")
    page.clock.install(time=made + timedelta(minutes=7, seconds=30))
    page.goto("/datasets/1")
    page.clock.fast_forward("01:01")

    expect(spot).to_have_text("8 min ago")
    context.close()


def test_chosen_theme_is_kept(themed: Page) -> None:
    themed.goto("/")
    before = themed.evaluate("getComputedStyle(document.body).backgroundColor")
    themed.get_by_role("button", name="Theme").click()
    themed.goto("/settings")

    assert themed.evaluate("getComputedStyle(document.body).backgroundColor") != before


def test_leaving_page_closes_its_event_stream(themed: Page) -> None:
    themed.goto("/")
    expect(themed.get_by_role("status").filter(has_text="Live")).to_be_visible()
    themed.get_by_role("link", name="Settings", exact=True).click()

    expect(themed.get_by_role("heading", name="Settings", level=1)).to_be_visible()
    expect(themed.get_by_role("status").filter(has_text="Live")).to_have_count(0)
