"""Images in the playground: attached, pasted, dropped, seen and removed, in a real browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from tests.e2e.runs.test_playground import opened, pick, reply
from tests.support.live_studio import Studio, stop_everything
from tests.support.vision_models import write_vision_model

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def studio(starter_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    """Start a studio with a model that reads images."""
    folder = tmp_path_factory.mktemp("seen")
    studio = Studio.copied(starter_home, folder / "home")
    studio.start()
    source = {"kind": "folder", "path": str(write_vision_model(folder / "llava", "llava"))}
    studio.api.post("/models", json={"name": "llava", "source": source}).raise_for_status()
    yield studio
    stop_everything(studio)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{colour}.png" for colour in ("red", "blue")]
    for path in paths:
        Image.new("RGB", (40, 30), path.stem).save(path)
    return paths


def attach(page: Page, paths: list[Path]) -> None:
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Attach images").press("Enter")
    chooser.value.set_files(paths)


def test_images_are_attached_seen_and_asked_again(page: Page, files: list[Path]) -> None:
    opened(page, "?model=model:2&max_tokens=4")
    attach(page, files)
    attached = page.get_by_role("list", name="Images of the next message")
    expect(attached.get_by_role("img")).to_have_count(2)
    expect(page.get_by_role("status").filter(has_text="Images attached: 2")).to_be_attached()
    page.get_by_role("button", name="Remove red.png").press("Enter")
    expect(attached.get_by_role("img")).to_have_count(1)
    expect(page.get_by_role("button", name="Remove blue.png")).to_be_focused()

    field = page.get_by_role("textbox", name="Message to all models")
    with page.expect_request("**/playground/answers") as asked:
        field.press("Enter")  # without words
    (message,) = (asked.value.post_data_json or {})["messages"]
    assert [part["type"] for part in message["content"]] == ["image_url"]
    shown = page.get_by_role("list", name="Images of this message").get_by_role("img")
    expect(shown).to_have_attribute("alt", "blue.png")
    expect(attached).to_be_hidden()
    expect(reply(page, 1).locator("[data-figures]")).to_contain_text("token")

    field.fill("And now?")
    with page.expect_request("**/playground/answers") as again:
        field.press("Enter")
    first, *_rest = (again.value.post_data_json or {})["messages"]
    assert first == message
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()


def test_images_are_pasted_and_dropped(page: Page) -> None:
    opened(page, "?model=model:2&max_tokens=4")
    for event, name in (("paste", "clipboardData"), ("drop", "dataTransfer")):
        page.evaluate(
            """async ([event, name]) => {
                const canvas = document.createElement("canvas");
                const blob = await new Promise((done) => canvas.toBlob(done));
                const files = new DataTransfer();
                files.items.add(new File([blob], `${event}.png`, {type: "image/png"}));
                const kind = event === "paste" ? ClipboardEvent : DragEvent;
                const made = new kind(event, {[name]: files, bubbles: true, cancelable: true});
                document.querySelector("[data-draft]").dispatchEvent(made);
            }""",
            [event, name],
        )
        expect(page.get_by_role("img", name=f"{event}.png")).to_be_visible()


def test_other_files_are_refused_in_words(page: Page, tmp_path: Path) -> None:
    opened(page, "?model=model:2")
    (tmp_path / "notes.txt").write_text("Hello")
    attach(page, [tmp_path / "notes.txt"])

    expect(page.get_by_text("Only PNG, JPEG, WebP and GIF files can be attached.")).to_be_visible()


def test_models_of_text_offer_no_images_and_refuse_them(page: Page, files: list[Path]) -> None:
    opened(page, "?model=model:1&max_tokens=4")
    button = page.get_by_role("button", name="Attach images")
    expect(button).to_be_hidden()

    page.get_by_role("button", name="Add a model").click()
    pick(page, "llava", "llava")
    expect(button).to_be_visible()
    attach(page, files[:1])
    field = page.get_by_role("textbox", name="Message to all models")
    field.fill("What is it?")
    field.press("Enter")
    expect(reply(page, 1)).to_contain_text("reads text only")
    expect(reply(page, 2).locator("[data-figures]")).to_contain_text("token")
