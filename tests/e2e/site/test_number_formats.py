"""Press the bits of a number: the value follows, by mouse and by keyboard."""

import re

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.e2e


def test_pressing_bits_changes_number_and_keeps_focus(page: Page) -> None:
    page.goto("/numbers?x=1")
    sign = page.locator("#bit-float16-1")
    sign.click()
    expect(page.locator("#x")).to_have_value("-1")
    expect(sign).to_be_focused()
    expect(page).to_have_url(re.compile("bits=float16"))

    page.keyboard.press("ArrowRight")
    page.keyboard.press("End")
    expect(page.locator("#bit-float16-16")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#x")).to_have_value("-1.0009765625")
    expect(page.locator("#format-bfloat16")).to_contain_text("Rounded")


def test_each_row_of_bits_is_one_tab_stop(page: Page) -> None:
    page.goto("/numbers")
    expect(page.locator("[data-bits] [tabindex='0']")).to_have_count(6)


def test_typing_updates_all_formats(page: Page) -> None:
    page.goto("/numbers")
    page.get_by_label("Number").fill("70000")
    expect(page.locator("#format-float16")).to_contain_text("Overflow")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Number")).to_have_value("70000")
    expect(page.locator("#format-bfloat16 output")).to_have_text(re.compile("70.144"))

    page.get_by_role("textbox", name="Update").fill("0.5")
    expect(page.get_by_text("No format loses all of these updates.")).to_be_visible()
