"""The first visit: through the link that the studio prints, in a real browser."""

import re
from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from tests.support.live_studio import Studio

pytestmark = pytest.mark.e2e


def printed(studio: Studio) -> str:
    found = re.search(r"Mantissa Studio is at (\S+)", (studio.home / "studio.log").read_text())
    assert found is not None
    return found[1]


@pytest.mark.smoke
def test_sign_in_link_works_for_one_browser(
    browser: Browser, make_studio: Callable[..., Studio]
) -> None:
    studio = make_studio(sign_in="link")
    page = browser.new_page(base_url=studio.url)
    page.goto("/queue")
    expect(page.get_by_role("heading", name="This browser is not signed in")).to_be_visible()
    assert Axe().run(page).response["violations"] == []

    page.goto(printed(studio))
    expect(page).to_have_url(f"{studio.url}/")
    page.get_by_role("link", name="Queue").click()
    expect(page.get_by_role("heading", name="Queue", level=1)).to_be_visible()

    other = browser.new_page(base_url=studio.url)
    other.goto(printed(studio))
    expect(other.get_by_role("alert")).to_contain_text("This link was already used")

    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="This browser is not signed in")).to_be_visible()
