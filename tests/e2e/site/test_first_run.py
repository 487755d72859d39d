"""The main job, as a newcomer does it: try, watch, train in another precision, compare."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.support.live_studio import Studio, get_run, submit_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e
WARM = True

LONG = 100_000
RUN = re.compile(r"/runs/\d+$")


def read_steps(chart: Locator, last: int) -> list[int]:
    """Read a chart by keyboard, as a person who cannot see it: the step of every point.

    `last` is the step of the newest point, which must have been drawn first. The first is that of
    the untrained model, whose loss on the validation rows is drawn at step 0.
    """
    spoken = chart.locator("xpath=..").locator(".read")
    # A chart is drawn while it is on the screen, and the focus scrolls to it.
    chart.focus()
    expect(chart).to_have_attribute("data-points", str(last + 1))
    chart.press("Home")
    # The first key loads the script that answers it.
    expect(spoken).to_contain_text("step")
    steps: list[int] = []
    while not steps or step_in(spoken) != steps[-1]:
        steps.append(step_in(spoken))
        chart.press("ArrowRight")
    return steps


def step_in(spoken: Locator) -> int:
    found = re.match(r"step (\d+)", spoken.inner_text())
    assert found is not None, spoken.inner_text()
    return int(found[1])


def loss_chart(page: Page) -> Locator:
    chart = page.get_by_role("application", name=re.compile("^Loss"))
    expect(chart).not_to_have_attribute("data-empty", "")
    expect(chart.locator("canvas")).to_be_visible()
    return chart


def shorten(page: Page, steps: int) -> None:
    page.get_by_role("link", name="Edit all settings").click()
    page.get_by_label("Max steps").fill(str(steps))


def test_quick_start_trains_run_and_compares_precisions(page: Page, studio: Studio) -> None:
    page.goto("/new?preset=quick")
    shorten(page, 4)
    page.locator("#start").click()

    page.wait_for_url(RUN)
    first = int(page.url.rpartition("/")[2])
    expect(page.locator("#head")).to_contain_text("succeeded", timeout=180_000)
    assert read_steps(loss_chart(page), 4) == list(range(5))
    tabs = page.get_by_role("navigation", name="Run", exact=True)
    tabs.get_by_role("link", name="Answers").click()
    expect(page.locator("#answers tbody tr")).to_have_count(6)
    tabs.get_by_role("link", name="Files").click()
    expect(page.get_by_role("link", name="model.safetensors")).to_be_visible()

    # What is recommended differs from machine to machine.
    taken = get_run(studio, first)["recipe"]["precision"]
    other, compute = ("fp32", "float32") if taken != "fp32" else ("bf16", "bfloat16")
    page.locator("#again summary").click()
    page.get_by_role("button", name="Another precision…").click()
    page.get_by_role("dialog").locator(f'input[value="{other}"]').check(force=True)
    page.get_by_role("dialog").get_by_role("button", name="Start").click()
    second = first + 1
    page.wait_for_url(f"**/runs/{second}")
    expect(page.locator("#head")).to_contain_text("succeeded", timeout=180_000)

    page.goto(f"/compare?runs={first},{second}")
    settings = page.get_by_role("region", name=re.compile("ettings"))
    expect(settings.get_by_role("row", name=f"precision {taken} {other}")).to_be_visible()
    expect(settings.get_by_role("row")).to_have_count(2)
    assert get_run(studio, second)["resolved"]["compute"] == compute


@pytest.mark.smoke
def test_reload_and_second_tab_show_same_run(
    page: Page, context: BrowserContext, studio: Studio
) -> None:
    number = submit_run(studio, max_steps=20)
    page.goto(f"/runs/{number}")
    wait_until(lambda: get_run(studio, number)["step"] >= 5)
    page.reload()
    second = context.new_page()
    second.goto(f"/runs/{number}")
    for tab in (page, second):
        tab.bring_to_front()
        expect(tab.locator("#head")).to_contain_text("succeeded")
        assert read_steps(loss_chart(tab), 20) == list(range(21))


def test_open_page_loses_nothing_when_studio_restarts(page: Page, studio: Studio) -> None:
    number = submit_run(studio, max_steps=LONG)
    page.goto(f"/runs/{number}")
    wait_until(lambda: get_run(studio, number)["step"] >= 5)
    studio.kill()
    studio.wait()
    studio.start()
    expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
    seen = get_run(studio, number)["step"]
    wait_until(lambda: get_run(studio, number)["step"] > seen + 3)
    studio.api.post(f"/runs/{number}/cancel").raise_for_status()
    expect(page.locator("#head")).to_contain_text("cancelled")

    last = get_run(studio, number)["step"]
    assert read_steps(loss_chart(page), last) == list(range(last + 1))


def test_back_and_forward_restore_working_pages(page: Page, studio: Studio) -> None:
    number = submit_run(studio, max_steps=10)
    page.goto("/")
    page.locator(f'main a[href="/runs/{number}"]').first.click()
    expect(page.locator("#head")).to_contain_text("succeeded")
    page.go_back()
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
    page.go_forward()

    page.wait_for_url(f"**/runs/{number}")
    assert read_steps(loss_chart(page), 10) == list(range(11))


def test_stop_asks_for_confirmation(page: Page, studio: Studio) -> None:
    number = submit_run(studio, max_steps=LONG)
    page.goto(f"/runs/{number}")
    wait_until(lambda: get_run(studio, number)["step"] >= 1)
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Stop and discard").click()

    expect(page.locator("#head")).to_contain_text("cancelled")


def test_ctrl_c_stops_studio_with_open_pages(page: Page, studio: Studio) -> None:
    number = submit_run(studio, max_steps=LONG)
    page.goto(f"/runs/{number}")
    expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
    studio.interrupt()

    assert studio.wait() in {0, -2, 130}
    expect(page.get_by_role("status").filter(has_text="Reconnecting")).to_be_visible()
    studio.start()
    studio.api.post(f"/runs/{number}/cancel").raise_for_status()


def test_rejected_form_keeps_input(page: Page) -> None:
    page.goto("/new#settings")
    page.get_by_role("textbox", name="Learning rate").fill("-1")
    page.get_by_label("Base model").fill("startr")
    page.locator("#start").click()

    expect(page.get_by_role("alert")).to_contain_text("Learning rate")
    expect(page.get_by_role("textbox", name="Learning rate")).to_have_value("-1")
    expect(page.get_by_label("Base model")).to_have_value("startr")
    page.get_by_role("textbox", name="Learning rate").fill("0.001")
    page.locator("#start").click()
    expect(page.get_by_role("alert")).to_contain_text("There is no model named startr.")


def tab_to(page: Page, target: Locator) -> None:
    """Go from field to field until a certain one is reached."""
    expect(target).to_be_visible()
    for _ in range(200):
        if target.evaluate("one => one === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError("It is not reached by keyboard.")


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def test_run_and_comparison_work_by_keyboard_alone(page: Page, studio: Studio) -> None:
    other = submit_run(studio, "the other", max_steps=2)
    page.goto("/")
    page.get_by_role("heading", name="Runs", exact=True).wait_for()
    press(page, "g", "n")
    page.wait_for_url("**/new")
    tab_to(page, page.get_by_role("link", name="Edit all settings"))
    press(page, "Enter")
    tab_to(page, page.get_by_label("Max steps"))
    page.keyboard.type("2")
    press(page, "Enter")
    page.wait_for_url(f"**/runs/{other + 1}")
    expect(page.locator("#head")).to_contain_text("succeeded", timeout=180_000)

    press(page, "g", "c")
    for number in (other + 1, other):
        tab_to(page, page.get_by_role("checkbox", name=re.compile(f"^Select run {number},")))
        press(page, "Space")
    tab_to(page, page.get_by_role("button", name="Compare selected"))
    press(page, "Enter")
    page.wait_for_url("**/compare?runs=*")
    chart = page.get_by_role("application", name=re.compile("^Training loss"))
    expect(chart).to_have_attribute("data-points", "2")
    tab_to(page, chart)
    press(page, "End")
    expect(chart.locator("xpath=..").locator(".read")).to_contain_text("step 2: ")


def test_own_dataset_can_be_uploaded(page: Page, studio: Studio, tmp_path: Path) -> None:
    rows = "".join(f'{{"instruction": "Say {i}", "output": "{i}."}}\n' for i in range(30))
    page.goto("/datasets")
    (tmp_path / "numbers.jsonl").write_text(rows)
    page.locator("input[type=file]").first.set_input_files(tmp_path / "numbers.jsonl")
    page.get_by_role("button", name=re.compile("^(Upload|Import|Add)")).click()

    page.wait_for_url("**/mapping")
    page.get_by_role("button", name="Save dataset").click()
    page.wait_for_url(re.compile(r"/datasets/\d+$"))
    expect(page.get_by_role("main")).to_contain_text("Instruction and answer (Alpaca)")
    assert "numbers" in [data["name"] for data in studio.api.get("/datasets").json()["data"]]
