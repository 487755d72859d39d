"""The quick start, from a home that does not exist yet to the answers of a trained model."""

import re
import sys
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.support.live_studio import Studio, free_port, get_run, stop_everything

pytestmark = pytest.mark.e2e

LONGEST_SECONDS = 300
"""A guard against hanging, for machines that run much else; the aim is 90."""


@pytest.fixture(scope="module")
def began() -> float:
    return time.monotonic()


@pytest.fixture(scope="module")
def studio(began: float, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:  # noqa: ARG001 -- the clock runs before the studio
    """Start a studio as a new user does: its home is made by the first start."""
    studio = Studio(tmp_path_factory.mktemp("fresh"), free_port())
    studio.warm = True
    studio.start()
    yield studio
    stop_everything(studio)


def right(studio: Studio, number: int, stage: str) -> int:
    samples = studio.api.get(f"/runs/{number}/samples").raise_for_status().json()["data"]
    answers = [sample for sample in samples if sample["stage"] == stage]
    assert len(answers) == 6
    return sum(answer["answer"] == answer["reference"] for answer in answers)


def test_one_press_leads_from_fresh_home_to_trained_model(
    page: Page, studio: Studio, began: float, capsys: pytest.CaptureFixture[str]
) -> None:
    page.goto("/")
    first_page = time.monotonic() - began
    page.get_by_role("button", name="Try it: train a model in about a minute").click()
    page.wait_for_url(re.compile(r"/runs/\d+$"))
    number = int(page.url.rpartition("/")[2])
    expect(page.locator("#head")).to_contain_text("succeeded", timeout=LONGEST_SECONDS * 1000)
    seconds = time.monotonic() - began

    run = get_run(studio, number)
    before, after = right(studio, number, "before"), right(studio, number, "after")
    with capsys.disabled():
        sys.stdout.write(
            f"\nFirst page after {first_page:.1f} s, result after {seconds:.1f} s, 1 press: "
            f"{run['step']} steps, {before} of 6 right, then {after}.\n"
        )
    assert run["step"] == run["resolved"]["steps_in_time"] > 1
    assert run["metrics"]["eval_loss"] < 3
    assert after >= before
