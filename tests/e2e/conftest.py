"""A real browser, looking at a studio that lives."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.support.live_studio import Studio, stop_everything
from tests.tools.browser import FLAGS, find_browser

expect.set_options(timeout=120_000)


# No longer than a file: while it lives, its event loop runs in the thread of all tests.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = find_browser()
    assert path is not None, "Run `python -m tests.tools.browser` first."
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(path), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def studio(
    request: pytest.FixtureRequest, starter_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Studio]:
    """Share one studio between the tests of a file: no test may count on its being untouched.

    Where `WARM` is set in the file, several runs train, and are forked.
    """
    studio = Studio.copied(starter_home, tmp_path_factory.mktemp("shared") / "home")
    studio.warm = getattr(request.module, "WARM", False)
    studio.start()
    yield studio
    stop_everything(studio)


@pytest.fixture
def context(browser: Browser, studio: Studio) -> Iterator[BrowserContext]:
    context = browser.new_context(
        base_url=studio.url, viewport={"width": 1440, "height": 900}, reduced_motion="reduce"
    )
    context.set_default_timeout(120_000)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return context.new_page()
