"""A run that has finished, and its chat."""

import pytest
from playwright.sync_api import Page, expect

from tests.support.live_studio import Studio, get_run, submit_run
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def finished(studio: Studio) -> int:
    number = submit_run(studio)
    wait_until(lambda: get_run(studio, number)["status"] == "succeeded")
    return number


@pytest.fixture
def chat(page: Page, finished: int) -> Page:
    page.goto(f"/runs/{finished}/chat")
    expect(page.locator(".chat[data-booted=done]")).to_be_visible()
    return page
