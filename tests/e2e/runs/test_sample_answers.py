"""Answers, as a person reads them: what differs, rated by keyboard, blind, live."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from sqlalchemy import Engine

from studio.db.session import open_engine, unit_of_work
from studio.protocols.events import Sampled, SampleStage
from studio.services.runs import attempts, runs
from tests.support.factories import make_finished_run, make_running
from tests.support.live_studio import Studio, stop_everything

pytestmark = pytest.mark.e2e

SAID = (("It is so.", "Yes."), ("It was so.", "Yes."))
COMPARED = "/compare?runs=1,2"


def sampled(position: int, answer: str, stage: SampleStage = "after", step: int = 9) -> Sampled:
    return Sampled(
        stage=stage,
        step=step,
        position=position,
        prompt=f"Question {position}",
        reference="R",
        answer=answer,
    )


@pytest.fixture
def answered(starter_home: Path, tmp_path: Path) -> Iterator[tuple[Studio, Engine]]:
    """Give a studio of two runs that are done, and one that trains, without a worker."""
    studio = Studio.copied(starter_home, tmp_path / "home")
    studio.worker = False
    engine = open_engine(studio.home / "studio.db")
    with unit_of_work(engine) as db:
        for number, said in enumerate(SAID, 1):
            told = [sampled(place, answer) for place, answer in enumerate(said)]
            attempts.apply_events(db, make_finished_run(db, f"try {number}"), told, 2000)
        attempts.apply_events(db, make_running(db), [sampled(0, "Da da.", "before", 0)], 1)
    studio.start()
    yield studio, engine
    stop_everything(studio)
    engine.dispose()


@pytest.fixture
def reader(browser: Browser, answered: tuple[Studio, Engine]) -> Iterator[Page]:
    context = browser.new_context(
        base_url=answered[0].url, viewport={"width": 1280, "height": 900}, reduced_motion="reduce"
    )
    context.set_default_timeout(120_000)
    yield context.new_page()
    context.close()


def answers(page: Page) -> Locator:
    return page.locator("#answers")


def tell(engine: Engine, number: int, *told: Sampled) -> None:
    with unit_of_work(engine) as db:
        run = runs.get(db, number)
        attempts.apply_events(db, run, told, run.events_offset)


def test_differing_answers_are_rated_by_keyboard_and_become_metric(reader: Page) -> None:
    reader.goto(COMPARED)
    answers(reader).get_by_label("Only where they differ").check()
    expect(answers(reader).get_by_text("1 of 2 prompts")).to_be_visible()
    assert "differs=1" in reader.url
    expect(answers(reader).locator("ins")).to_have_text(re.compile("was"))

    answers(reader).get_by_role("button", name="Rate by keyboard").click()
    reader.keyboard.press("4")
    expect(answers(reader).get_by_text("Rated 4 of 5.")).to_be_visible()
    second = answers(reader).get_by_role("group", name="Rating of run 2 to prompt 1")
    expect(second.get_by_role("radio", name="1")).to_be_focused()
    reader.keyboard.press("5")
    expect(answers(reader).locator("#mean-2")).to_have_text("rated 5.0 (n = 1)")

    row = reader.locator("#finals").get_by_role("row").filter(has_text="Rating, 1 to 5")
    expect(row).to_have_text(re.compile(r"4\s.*5\s+\+1", re.DOTALL))
    reader.reload()
    expect(second.get_by_role("radio", name="5")).to_be_checked()
    expect(answers(reader).get_by_text("1 of 2 prompts")).to_be_visible()


def test_rating_can_be_undone_by_keyboard(reader: Page) -> None:
    reader.goto(COMPARED)
    answers(reader).get_by_role("button", name="Rate by keyboard").click()
    for key in ("2", "u"):
        reader.keyboard.press(key)
        expect(answers(reader).get_by_role("status").last).to_contain_text(
            "Rated 2" if key == "2" else "Rating cleared."
        )

    expect(answers(reader).locator("#mean-1")).to_be_empty()
    expect(answers(reader).locator(":checked[type=radio]")).to_have_count(0)


def test_blind_rating_hides_runs_until_revealed(reader: Page) -> None:
    reader.goto(COMPARED)
    answers(reader).get_by_role("link", name="Rate blind").click()
    expect(answers(reader).get_by_role("columnheader", name="Answer A")).to_be_visible()
    answers(reader).get_by_role("button", name="Rate by keyboard").click()
    reader.keyboard.press("3")
    expect(answers(reader).get_by_text("Rated 3 of 5.")).to_be_visible()
    expect(reader.locator("#finals")).not_to_contain_text("Rating")

    answers(reader).get_by_role("link", name="Reveal runs").click()
    expect(reader.locator("#finals")).to_contain_text("Rating, 1 to 5")


def test_sample_answers_of_running_run_appear_live(
    reader: Page, answered: tuple[Studio, Engine]
) -> None:
    reader.goto("/runs/3/answers")
    expect(answers(reader).get_by_role("columnheader", name="Before training")).to_be_visible()
    expect(reader.get_by_role("status").filter(has_text="Live")).to_be_visible()
    tell(answered[1], 3, sampled(0, "Da it is.", "during", 5))
    expect(answers(reader).get_by_role("columnheader", name="Step 5")).to_be_visible()
    expect(answers(reader).locator("ins")).to_have_text("it is.")
