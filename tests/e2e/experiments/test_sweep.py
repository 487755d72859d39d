"""A sweep in a browser: asked for, watched while its runs train, and its best taken on."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.support.live_studio import QUICK, Studio

pytestmark = pytest.mark.e2e
WARM = True

PATIENCE = 300_000


def test_sweep_runs_from_form_to_best_settings(page: Page, studio: Studio) -> None:
    recipe = QUICK | {"optimisation": QUICK["optimisation"] | {"max_steps": 4}}
    studio.api.post("/experiments", json={"name": "swept", "recipe": recipe}).raise_for_status()
    page.goto("/experiments/1")
    page.get_by_role("link", name="Sweep", exact=True).click()
    told = page.locator("#prospect")
    expect(told).to_contain_text("No setting varies yet.")
    rate = page.get_by_role("textbox", name="Learning rate")
    rate.fill("1e-3, x")
    expect(told).to_contain_text("x: Must be a number")
    page.get_by_role("button", name="Start the sweep").click()
    expect(page.get_by_role("alert")).to_contain_text("One problem to fix")
    expect(rate).to_have_value("1e-3, x")
    rate.fill("1e-5, 1e-2")
    expect(told).to_contain_text("2 runs")
    page.get_by_role("button", name="Start the sweep").click()

    page.wait_for_url("**/sweeps/1")
    # Nobody reloads: the page hears of its runs by itself.
    expect(page.get_by_role("heading", level=1)).to_contain_text("finished", timeout=PATIENCE)
    expect(page.locator("#sweep")).to_contain_text("2 of 2 runs ended")
    expect(
        page.get_by_role("img", name="Validation loss (nats/token) over Learning rate")
    ).to_be_visible()
    best = page.get_by_role("region", name="Best run")
    expect(best).to_contain_text("learning rate 0.01")
    best.get_by_role("link", name="Use these settings").click()

    page.wait_for_url(re.compile(r"/new\?from=run:2"))
    expect(page.locator("[name='optimisation.learning_rate']")).to_have_value("0.01")
