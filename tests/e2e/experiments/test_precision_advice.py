"""The advice in the form of a new experiment, as a person meets it."""

import pytest
from playwright.sync_api import Page, expect

from tests.support.live_studio import Studio
from tests.unit.weights import safetensors_folders

pytestmark = pytest.mark.e2e


def test_precision_advice_follows_chosen_precision(page: Page) -> None:
    page.goto("/new?preset=full#settings")
    page.get_by_text("more formats").click()
    page.get_by_role("radio", name="bfloat16 throughout").check(force=True)

    caution = page.locator("#advice .caution").filter(has_text="of weights would not change")
    expect(caution).to_be_visible()


def test_unread_rows_are_counted_for_estimate(page: Page) -> None:
    page.goto("/new#settings")

    expect(page.locator("#advice figcaption")).to_contain_text("for examples of 59 tokens;")
    expect(page.locator("#counting .chore")).to_have_count(0)


def test_dry_run_makes_estimate_exact_and_keeps_form(page: Page) -> None:
    page.goto("/new?preset=full#settings")
    page.get_by_label("Name", exact=True).fill("kept")
    expect(page.locator("#advice figcaption")).to_contain_text("Estimated for examples")
    page.get_by_role("button", name="Count every tensor").click()

    expect(page.locator("#advice figcaption")).to_contain_text("From a dry run", timeout=180_000)
    expect(page.get_by_role("button", name="Count every tensor")).to_have_count(0)
    expect(page.get_by_label("Name", exact=True)).to_have_value("kept")


def test_one_click_fixes_rejected_precision(page: Page, studio: Studio) -> None:
    folder = safetensors_folders.write(studio.home / "large", {"a": ("F32", [70000.0])})
    page.goto("/new?preset=full#settings")
    page.get_by_role("radio", name="float16 mixed", exact=True).check(force=True)
    page.get_by_label("Base model").fill(str(folder))
    page.get_by_label("Base model").blur()
    expect(page.locator("#advice .problem")).to_contain_text("the largest float16 value")
    page.locator("#lacking").get_by_role("button", name="Use bfloat16 mixed").click()

    expect(page.locator("#advice .problem")).to_have_count(0)
    expect(page.get_by_role("radio", name="bfloat16 mixed", exact=True)).to_be_checked()
