"""A page put on paper, as a browser prints it, and what would be wrong with it there."""

from playwright.sync_api import Page, expect

WIDTH = 688
"""Of A4 between its margins, in the browser's pixels."""

_TO_USE = "nav, button, input, select, textarea, .btn"
_CUT = """() => [...document.querySelectorAll("main *")]
    .filter((one) => one.checkVisibility() && !one.closest(".vh"))
    .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
    .map((one) => one.outerHTML.slice(0, 100))"""


def emulate_print(page: Page) -> None:
    """Show a page as it is printed by somebody who likes it dark."""
    page.set_viewport_size({"width": WIDTH, "height": 900})
    page.emulate_media(media="print", color_scheme="dark")


def expect_readable_print(page: Page) -> None:
    """See that there is nothing to press, nothing cut off, and ink on nothing but the paper."""
    expect(page.locator(_TO_USE).filter(visible=True)).to_have_count(0)
    style = "getComputedStyle(document.body)"
    assert page.evaluate(f"[{style}.color, {style}.backgroundColor]") == [
        "rgb(0, 0, 0)",
        "rgba(0, 0, 0, 0)",
    ]
    assert page.evaluate(_CUT) == []
