"""A precision study in a browser: begun, watched while its runs train, read, kept and printed."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.live_studio import Studio, submit_run
from tests.support.print_layout import emulate_print, expect_readable_print

pytestmark = pytest.mark.e2e
WARM = True

PATIENCE = 300_000


def test_precision_study_runs_to_conclusion_download_and_print(
    page: Page, studio: Studio, tmp_path: Path
) -> None:
    submit_run(studio, max_steps=2)
    page.goto("/experiments/1")
    page.get_by_role("link", name="Precision study").first.click()
    for box in page.locator("input[name=modes]:not([disabled])").all():
        box.set_checked(box.get_attribute("value") == "bf16")
    page.get_by_role("textbox", name="Seeds").fill("1")
    page.get_by_role("combobox", name="Steps").fill("6")
    page.get_by_role("button", name="Start the study").click()

    page.wait_for_url("**/reports/precision/1")
    verdict = page.locator("#verdict")
    expect(verdict).to_contain_text("So far: bf16")
    # Nobody reloads: the page hears of its runs by itself.
    expect(verdict.get_by_role("heading")).to_have_text("Conclusion", timeout=PATIENCE)
    expect(verdict.get_by_role("listitem").first).to_contain_text("fp32")
    expect(page.get_by_label("Runs of this study")).to_contain_text("6 of 6")
    with page.expect_download() as taken:
        page.get_by_role("link", name="Markdown").click()
    taken.value.save_as(tmp_path / "study.md")

    emulate_print(page)
    expect(page.locator(".chart canvas")).to_have_count(2)
    expect(page.locator(".legend label").filter(visible=True)).to_have_text(["fp32", "bf16"])
    expect_readable_print(page)
    said = (tmp_path / "study.md").read_text(encoding="utf-8")
    assert said.startswith("# Precision study: quick")
    assert verdict.get_by_role("listitem").first.inner_text().split(" (")[0] in said
