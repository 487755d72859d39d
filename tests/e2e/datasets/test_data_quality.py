"""What is suspicious in a data set, in a browser: found, shown, left out; then a run starts."""

import json
import re

import pytest
from playwright.sync_api import FilePayload, Page, expect

from tests.support.live_studio import Studio

pytestmark = pytest.mark.e2e

GOOD = [(f"What is {i}?", f"It is {i}.") for i in range(30)]


def bring(page: Page, pairs: list[tuple[str, str]], **more: list[bool]) -> None:
    rows: list[dict[str, str | bool]]
    rows = [{"prompt": question, "completion": answer} for question, answer in pairs]
    for name, values in more.items():
        rows = [row | {name: value} for row, value in zip(rows, values, strict=True)]
    content = "".join(json.dumps(row) + "\n" for row in rows)
    page.goto("/datasets")
    file = FilePayload(name="pets.jsonl", mimeType="text/plain", buffer=content.encode())
    page.get_by_label("File", exact=True).set_input_files(file)
    page.get_by_role("button", name="Upload").click()
    page.wait_for_url("**/mapping")
    page.get_by_role("button", name="Save dataset").click()
    page.wait_for_url(re.compile(r"/datasets/\d+$"))


def test_findings_are_excluded_and_run_succeeds(page: Page, studio: Studio) -> None:
    bring(page, [*GOOD, ("Ring\x07 it", "Yes."), *GOOD[:3]])
    expect(page.locator(".finding")).to_have_count(2)

    page.get_by_role("link", name=re.compile("^Show rows: Rows contain control")).click()
    expect(page.locator(".turns-list > li")).to_have_count(1)
    expect(page.locator("mark.found")).to_have_text("U+0007")

    page.get_by_role("button", name="Exclude this row").click()
    page.get_by_role("button", name="Exclude it").click()
    expect(page.get_by_text("New runs use version 2; version 1 is unchanged.")).to_be_visible()
    page.get_by_role("button", name="Drop duplicates").click()
    page.get_by_role("button", name="Drop them").click()
    expect(page.get_by_text("No issues found in the rows.")).to_be_visible()

    page.get_by_role("link", name="Train on this").click()
    page.get_by_role("link", name="Edit all settings").click()
    page.get_by_label("Max steps").fill("2")
    page.locator("#start").click()
    page.wait_for_url(re.compile(r"/runs/\d+$"))
    expect(page.locator("#head")).to_contain_text("succeeded", timeout=180_000)
    made = studio.api.get("/datasets").json()["data"][0]
    assert (made["version"], made["train_rows"], made["findings"]) == (3, 30, [])


def test_blocking_finding_is_shown_and_no_run_starts(page: Page, studio: Studio) -> None:
    before = studio.api.get("/runs").json()["data"]
    bring(page, GOOD, label=[False] * len(GOOD))
    expect(page.locator(".finding")).to_contain_text("Runs cannot start with these rows.")

    page.get_by_role("link", name="Train on this", exact=True).click()
    expect(page.locator("#advice")).to_contain_text("No answer is rated good")
    page.locator("#start").click()

    expect(page.locator("#dataset-problem")).to_contain_text("No answer is rated good")
    assert studio.api.get("/runs").json()["data"] == before
