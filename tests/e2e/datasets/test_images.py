"""A zip archive of rows and images in a real browser: from its preview to a model that learns."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.live_studio import Studio
from tests.support.sample_images import image
from tests.support.vision_models import write_vision_model
from tests.unit.intake.conftest import zipped

pytestmark = pytest.mark.e2e

QUESTIONS = "".join(
    json.dumps(
        {
            "image": f"photos/{colour}.png",
            "conversations": [
                {"from": "human", "value": "<image>\nWhat colour is it?"},
                {"from": "gpt", "value": f"It is {colour}."},
            ],
        }
    )
    + "\n"
    for colour in ("red", "green", "blue")
)
PHOTOS = {
    f"photos/{colour}.png": image(colour, size=(64, 48)) for colour in ("red", "green", "blue")
}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    file = tmp_path / "colours.zip"
    file.write_bytes(zipped({"rows.jsonl": QUESTIONS.encode()} | PHOTOS))
    return file


def import_file(page: Page, file: Path) -> None:
    page.goto("/datasets")
    expect(page.locator("form[data-module]")).to_have_attribute("data-booted", "done")
    page.locator("#file").set_input_files(file)
    page.get_by_role("button", name="Upload").click()
    page.wait_for_url("**/mapping")


def expect_loaded(images: Locator) -> None:
    expect(images).to_have_count(3)
    for shown in images.all():
        shown.scroll_into_view_if_needed()
        expect(shown).to_have_js_property("complete", value=True)
        assert shown.evaluate("one => one.naturalWidth") == 64


def test_images_are_shown_before_and_after_the_import(page: Page, archive: Path) -> None:
    import_file(page, archive)
    expect_loaded(page.locator("#preview img"))
    page.get_by_role("button", name="Save dataset").click()

    expect(page.get_by_role("heading", name="Rows, as used in training")).to_be_visible()
    expect_loaded(page.locator(".turns-list img"))
    expect(page.locator(".turns-list img").first).to_have_attribute("alt", "Image, 64 by 48 pixels")


def test_newcomer_trains_on_images_and_asks_the_model(
    page: Page, studio: Studio, archive: Path, tmp_path: Path
) -> None:
    source = {"kind": "folder", "path": str(write_vision_model(tmp_path / "llava", "llava"))}
    studio.api.post("/models", json={"name": "llava", "source": source}).raise_for_status()
    import_file(page, archive)
    page.get_by_role("button", name="Save dataset").click()
    page.get_by_role("link", name="View tokens").click()
    expect(page.locator("#sight .tokens")).to_contain_text("<image>")
    page.go_back()

    page.get_by_role("link", name="Learn from images", exact=True).click()
    expect(page.locator(".decision .chosen")).to_have_text("Learn from images")
    expect(page.get_by_role("combobox", name="Base model")).to_have_value("llava")
    page.get_by_role("button", name="Start", exact=True).click()
    result = page.get_by_role("region", name=re.compile("It "))
    expect(result.get_by_role("img")).to_have_count(1)

    page.get_by_role("link", name="Evaluate it").click()
    page.get_by_role("button", name="Evaluate", exact=True).click()
    answers = page.get_by_role("table", name="Answers of both models")
    expect(answers.get_by_role("img")).to_have_count(1)

    page.get_by_role("link", name="Chat", exact=True).first.click()
    page.get_by_role("button", name=re.compile("What colour is it")).click()
    shown = page.get_by_role("list", name="Images of this message")
    expect(shown.get_by_role("img")).to_have_count(1)
    expect(page.locator("[data-figures]").last).to_contain_text("token")
