"""The page of a run in a real browser: live figures and answers, its end, and what follows."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import Engine

from studio.db.session import open_engine, unit_of_work
from studio.db.states import RunStatus
from studio.protocols.events import Event, Sampled, SampleStage
from studio.protocols.run_dir import RunDir
from studio.services.runs import attempts, runs, states
from tests.support.factories import make_running, metrics_event
from tests.support.live_studio import Studio, stop_everything

pytestmark = pytest.mark.e2e


def sampled(answer: str, stage: SampleStage, step: int) -> Sampled:
    return Sampled(
        stage=stage, step=step, position=0, prompt="Capital?", reference="Oslo.", answer=answer
    )


@pytest.fixture
def training(starter_home: Path, tmp_path: Path) -> Iterator[tuple[Studio, Engine]]:
    """Give a studio with a run whose events the test tells."""
    studio = Studio.copied(starter_home, tmp_path / "home")
    studio.worker = False
    engine = open_engine(studio.home / "studio.db")
    with unit_of_work(engine) as db:
        attempts.apply_events(db, make_running(db, "capitals"), [sampled("Rome", "before", 0)], 1)
    studio.start()
    yield studio, engine
    stop_everything(studio)
    engine.dispose()


@pytest.fixture
def page(browser: Browser, training: tuple[Studio, Engine]) -> Iterator[Page]:
    context = browser.new_context(base_url=training[0].url, reduced_motion="reduce")
    context.set_default_timeout(120_000)
    page = context.new_page()
    page.goto("/runs/1")
    expect(page.get_by_role("status").filter(has_text="Live")).to_be_attached()
    yield page
    context.close()


def tell(engine: Engine, *told: Event) -> None:
    with unit_of_work(engine) as db:
        run = runs.get(db, 1)
        attempts.apply_events(db, run, told, run.events_offset + 1)


def finish(training: tuple[Studio, Engine]) -> None:
    studio, engine = training
    folder = RunDir(studio.home / "runs" / "1").artifacts
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    tell(engine, sampled("Oslo.", "after", 10))
    with unit_of_work(engine) as db:
        states.move(db, runs.get(db, 1), RunStatus.SUCCEEDED)


def test_figures_and_browser_tab_follow_run(page: Page, training: tuple[Studio, Engine]) -> None:
    icon = page.locator("link[rel=icon]")
    tell(training[1], metrics_event(3, loss=2.0), metrics_event(4, loss=2.5))

    expect(page.locator("#outcome [data-put=loss]")).to_have_text("2.5")
    expect(page.locator("[data-course=loss] .best")).to_have_text("★ best 2 at step 3")
    expect(page.locator("[data-course=loss] polyline")).to_have_attribute("points", re.compile(" "))
    expect(page).to_have_title("40 % · capitals")
    expect(icon).to_have_attribute("href", re.compile("^data:image/svg"))

    page.get_by_role("link", name="Charts", exact=True).click()
    page.wait_for_url("**/runs/1/charts")
    page.get_by_role("link", name="Queue").first.click()
    page.wait_for_url("**/queue")
    expect(icon).to_have_attribute("href", re.compile("/static/icon.svg"))


def test_answers_are_rewritten_live_and_found_again_by_slider(
    page: Page, training: tuple[Studio, Engine]
) -> None:
    answer = page.locator("#live-answers .answered")
    expect(answer).to_contain_text("Rome")
    tell(training[1], sampled("Oslo", "during", 5))
    expect(answer).to_have_text("✗ wrong Oslo")
    tell(training[1], sampled("Oslo.", "during", 8))
    expect(answer).to_have_text("✓ right Oslo.")

    slider = page.get_by_role("slider", name="Step of the answers")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    expect(answer).to_have_text("✗ wrong Oslo")
    expect(slider).to_be_focused()
    # Who looks at an earlier step stays there.
    tell(training[1], sampled("Bergen", "during", 9))
    expect(slider).to_have_attribute("max", "3")
    expect(answer).to_have_text("✗ wrong Oslo")


def test_end_shows_result_and_toast(page: Page, training: tuple[Studio, Engine]) -> None:
    finish(training)

    expect(page.get_by_role("heading", name="It learned it: 0 of 1 → 1 of 1 right")).to_be_visible()
    expect(page.locator("[data-toast]")).to_contain_text("capitals has succeeded.")
    expect(page).to_have_title("✓ · capitals")


def test_model_downloads_by_one_press(page: Page, training: tuple[Studio, Engine]) -> None:
    finish(training)
    with page.expect_download() as download:
        page.locator("#head").get_by_role("link", name="Download").click()

    assert download.value.suggested_filename == "capitals-1.zip"


def test_chat_is_one_press_away(page: Page, training: tuple[Studio, Engine]) -> None:
    finish(training)
    page.locator("#head").get_by_role("link", name="Chat").click()

    page.wait_for_url("**/runs/1/chat")


def test_menu_works_by_keyboard(page: Page) -> None:
    menu = page.locator("#more")
    menu.locator("summary").focus()
    page.keyboard.press("ArrowDown")
    expect(menu.get_by_role("button", name="Same settings")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(menu.get_by_role("button", name="Another precision…")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()


def move(training: tuple[Studio, Engine], status: RunStatus) -> None:
    with unit_of_work(training[1]) as db:
        states.move(db, runs.get(db, 1), status)


def test_open_menu_and_focus_survive_redraws(page: Page, training: tuple[Studio, Engine]) -> None:
    head, menu = page.locator("#head"), page.locator("#more")
    menu.locator("summary").click()
    choice = menu.get_by_role("button", name="Another precision…")
    choice.focus()

    move(training, RunStatus.STOPPING)

    expect(head.locator(".status")).to_have_text("◍ stopping")
    expect(menu).to_have_attribute("open", "")
    expect(choice).to_be_focused()


def test_focus_stays_at_controls_when_focused_button_goes(
    page: Page, training: tuple[Studio, Engine]
) -> None:
    controls = page.locator("#head .run-actions")
    controls.get_by_role("button", name="Pause").focus()

    move(training, RunStatus.STOPPING)

    expect(controls.get_by_role("button", name="Pause")).to_have_count(0)
    expect(controls.locator(":focus")).to_have_count(1)


def test_closed_details_stay_closed_when_server_draws_them_open(page: Page) -> None:
    """Details that a person has closed and details that he has opened are his."""
    page.evaluate(
        """() => {
          const part = '<div id="part"><details id="one" open><summary>One</summary>1</details>'
            + '<details id="two"><summary>Two</summary>2</details></div>';
          document.querySelector("main").insertAdjacentHTML("beforeend", part);
          window.redraw = () => htmx.swap({ sourceElement: document.body, target: "#part",
            text: part, swap: "outerMorph" });
        }"""
    )
    page.locator("#one summary").click()
    page.locator("#two summary").click()

    page.evaluate("() => window.redraw()")

    expect(page.locator("#one")).not_to_have_attribute("open", "")
    expect(page.locator("#two")).to_have_attribute("open", "")


def test_legend_names_lines_once_they_have_values(
    page: Page, training: tuple[Studio, Engine]
) -> None:
    names = page.locator(".watch .legend label")
    tell(training[1], metrics_event(1, loss=2.0), metrics_event(2, loss=1.9))
    expect(names.filter(has_text="Training loss")).to_be_visible()
    expect(names.filter(has_text="Validation loss")).to_be_hidden()

    tell(training[1], metrics_event(3, eval_loss=1.8))

    expect(names.filter(has_text="Validation loss")).to_be_visible()
