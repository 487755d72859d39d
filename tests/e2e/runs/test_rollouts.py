"""The answers that a run learns from, in a browser: of a real run, and while a run trains."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import Engine

from studio.db.session import open_engine, unit_of_work
from studio.protocols.rollouts import AnswerRecord, GroupRecord
from studio.protocols.run_dir import RunDir
from studio.services.runs import attempts, runs
from tests.support.factories import make_running, metrics_event
from tests.support.live_studio import QUICK, Studio, get_run, stop_everything
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def reinforced(studio: Studio) -> int:
    """Train a model on the scores of its answers."""
    changes: dict[str, Any] = {
        "method": "grpo",
        "adapter": {"kind": "full"},
        "rollouts": {"answers_per_prompt": 4, "max_new_tokens": 8, "validation_prompts": 4},
        "optimisation": {"max_steps": 3, "per_device_train_batch_size": 2},
        "evaluation": {"eval_steps": 3, "logging_steps": 1},
    }
    answer = studio.api.post("/runs", json={"name": "scored", "recipe": QUICK | changes})
    number: int = answer.raise_for_status().json()["id"]
    wait_until(lambda: get_run(studio, number)["status"] == "succeeded")
    return number


def scores(page: Page) -> list[list[float]]:
    """Return the scores of the answers to each prompt, as shown."""
    return [
        [float(text) for text in body.locator("td strong").all_inner_texts()]
        for body in page.get_by_role("table", name="Answers with their scores")
        .locator("tbody")
        .all()
    ]


def test_answers_of_a_real_run_are_shown_and_sorted(page: Page, reinforced: int) -> None:
    page.goto(f"/runs/{reinforced}")
    page.get_by_role("navigation", name="Run", exact=True).get_by_text("Scored answers").click()
    expect(page.locator("#rollouts output")).to_have_text("Step 3")
    expect(page.locator("#rollouts")).to_contain_text("16 answers to 4 prompts")

    page.get_by_role("link", name="Best first").click()
    expect(page).to_have_url(re.compile("sort=best"))
    best = scores(page)
    page.get_by_role("link", name="Worst first").click()
    expect(page).to_have_url(re.compile("sort=worst"))
    worst = scores(page)

    assert [len(group) for group in best] == [4, 4, 4, 4]
    assert best == [sorted(group, reverse=True) for group in best]
    assert [group[0] for group in best] == sorted((group[0] for group in best), reverse=True)
    assert worst == [sorted(group) for group in worst]

    page.get_by_role("link", name="Validation").click()
    expect(page.locator("#rollouts")).to_contain_text("4 answers to 4 prompts")


def test_steps_are_chosen_by_keyboard(page: Page, reinforced: int) -> None:
    page.goto(f"/runs/{reinforced}/rollouts")
    shown, slider = page.locator("#rollouts output"), page.get_by_label("Step of the answers")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    expect(shown).to_have_text("Step 2")
    expect(page).to_have_url(re.compile("step=2"))
    expect(slider).to_be_focused()
    page.keyboard.press("Home")
    expect(shown).to_have_text("Step 1")

    page.get_by_role("link", name="Next", exact=True).focus()
    page.keyboard.press("Enter")
    expect(shown).to_have_text("Step 2")
    expect(slider).to_have_value("1")
    expect(page.get_by_role("link", name="Next", exact=True)).to_be_focused()
    page.get_by_role("link", name="Newest").click()
    expect(shown).to_have_text("Step 3")
    page.reload()
    expect(shown).to_have_text("Step 3")


@pytest.fixture
def training(starter_home: Path, tmp_path: Path) -> Iterator[tuple[Studio, Engine]]:
    """Give a studio of a run that has written the answers of its first step, without a worker."""
    studio = Studio.copied(starter_home, tmp_path / "home")
    studio.worker = False
    engine = open_engine(studio.home / "studio.db")
    with unit_of_work(engine) as db:
        make_running(db, method="grpo")
    write(studio, 1)
    studio.start()
    yield studio, engine
    stop_everything(studio)
    engine.dispose()


@pytest.fixture
def reader(browser: Browser, training: tuple[Studio, Engine]) -> Iterator[Page]:
    context = browser.new_context(base_url=training[0].url, reduced_motion="reduce")
    context.set_default_timeout(120_000)
    yield context.new_page()
    context.close()


def write(studio: Studio, step: int) -> None:
    folder = RunDir(studio.home / "runs" / "1")
    folder.root.mkdir(parents=True, exist_ok=True)
    answers = [
        AnswerRecord(
            text=f"Answer of step {step}. " + "And on. " * 100,
            reward=reward,
            parts={},
            messages=[],
            tokens=9,
            is_cut_off=False,
        )
        for reward in (0.1, 0.9)
    ]
    group = GroupRecord(step=step, stage="training", row=1, prompt="Why?", answers=answers)
    with folder.rollouts.open("a", encoding="utf-8") as file:
        file.write(group.to_line())


def tell(engine: Engine, step: int) -> None:
    with unit_of_work(engine) as db:
        run = runs.get(db, 1)
        attempts.apply_events(db, run, [metrics_event(step, reward=0.5)], run.events_offset + 1)


def test_tab_follows_a_run_that_trains(reader: Page, training: tuple[Studio, Engine]) -> None:
    studio, engine = training
    reader.goto("/runs/1/rollouts")
    expect(reader.get_by_text("Answer of step 1.").first).to_be_visible()
    expect(reader.locator("html")).to_have_attribute("data-live", "live")
    write(studio, 2)
    tell(engine, 1)
    expect(reader.get_by_text("Answer of step 2.").first).to_be_visible()
    write(studio, 3)
    tell(engine, 2)
    expect(reader.locator("#rollouts output")).to_have_text("Step 3")
    slider = reader.get_by_label("Step of the answers")
    expect(slider).to_have_value("2")

    # Who reads an earlier step stays there, with what is open.
    reader.get_by_role("link", name="First", exact=True).click()
    expect(reader.locator("#rollouts output")).to_have_text("Step 1")
    reader.get_by_text("more", exact=True).first.click()
    write(studio, 4)
    tell(engine, 3)
    expect(slider).to_have_attribute("max", "3")
    expect(slider).to_have_value("0")
    expect(reader.get_by_text("Answer of step 1.").first).to_be_visible()
    expect(reader.locator("details.rest").first).to_have_attribute("open", "")
