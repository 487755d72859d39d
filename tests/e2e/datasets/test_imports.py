"""Data brought in a real browser: a large file that is cut off, and one that cannot be had."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

pytestmark = pytest.mark.e2e

LARGE = b'{"prompt": "What is asked here?", "completion": "What is answered."}\n' * 280_000
"""More than is sent in one part, and more than two."""


def test_large_upload_resumes_after_lost_connection(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "large.jsonl"
    file.write_bytes(LARGE)
    offsets: list[str] = []
    held: list[Route] = []
    seen: list[bool] = []

    def cut_the_second_and_wait(route: Route) -> None:
        if route.request.method == "PATCH":
            offsets.append(route.request.headers["upload-offset"])
            if len(offsets) == 2:
                route.abort()
                return
        if route.request.method == "HEAD" and not seen:
            held.append(route)
            return
        route.continue_()

    page.route("**/api/v1/uploads/*", cut_the_second_and_wait)
    page.goto("/datasets")
    # Before that, the form is sent as forms are, all at once.
    expect(page.locator("form[data-module]")).to_have_attribute("data-booted", "done")
    page.locator("#file").set_input_files(file)
    page.get_by_role("button", name="Upload").click()

    expect(page.get_by_text("Connection lost. Retrying…")).to_be_visible()
    sent = page.get_by_role("progressbar", name="Upload progress")
    assert 0 < float(sent.get_attribute("value") or 0) < 1
    seen.append(True)
    for route in held:
        route.continue_()
    page.wait_for_url("**/mapping")
    expect(page.get_by_role("heading", name="large", exact=False).first).to_be_visible()
    assert offsets[:4] == ["0", "2097152", "2097152", "4194304"]


def test_blocked_url_import_shows_reason_and_retry(page: Page) -> None:
    page.goto("/datasets")
    page.get_by_role("link", name="URL").click()
    page.get_by_label("URL", exact=True).fill("http://127.0.0.1/rows.jsonl")
    page.get_by_role("button", name="Import").click()

    refusal = "127.0.0.1 is an internal address, which is blocked."
    expect(page.get_by_role("alert")).to_contain_text(refusal)
    expect(page.get_by_role("button", name="Retry")).to_be_visible()
