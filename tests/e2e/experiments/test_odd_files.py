"""Odd files chosen on the form of an experiment: each is taken, or refused with what to do."""

import io
import json
import re
import zipfile
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.e2e

TABLE = "prompt,completion\nWhy?,So.\nWhat?,Né.\n"
ROW = {"prompt": "Why?", "completion": "So."}


def archive(**files: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as written:
        for name, text in files.items():
            written.writestr(name.replace("_", "."), text)
    return content.getvalue()


TAKEN = {
    "in UTF-16.csv": TABLE.encode("utf-16"),
    "one row.csv": b"prompt,completion\nWhy?,So.\n",
    "an object.json": json.dumps(ROW).encode(),
    "wrapped.json": json.dumps({"data": [ROW, ROW]}).encode(),
    "packed.zip": archive(rows_jsonl=json.dumps(ROW), readme_pdf="x"),
}
REFUSED = {
    "empty.csv": (b"", "The file is empty. Choose a file that has rows."),
    "blank.txt": (b"\n \n", "The file is empty. Choose a file that has rows."),
    "heads only.csv": (
        b"prompt,completion\n",
        "The file has no rows. Choose a file that has rows.",
    ),
    "no extension": (TABLE.encode(), "Add the extension of its format, such as .csv"),
    "a number.json": (b"42", "Rows are objects in braces."),
    "cut.json": (b'[{"prompt": "a",', "Fix the file and upload it again"),
    "paper.pdf": (b"%PDF-1.7\n", "Save its text as plain text and upload the text file."),
    "pictures.zip": (archive(a_png="x"), "contains no data files, only a.png."),
}


@pytest.fixture
def form(page: Page) -> Page:
    page.goto("/new")
    page.locator("#drop").wait_for()
    return page


def choose(page: Page, name: str, content: bytes) -> None:
    file = {"name": name, "mimeType": "application/octet-stream", "buffer": content}
    page.locator("#upload").set_input_files(file)  # type: ignore[arg-type] # a dict is one


@pytest.mark.parametrize("name", TAKEN)
def test_odd_file_is_taken(form: Page, name: str) -> None:
    choose(form, name, TAKEN[name])

    expect(form.locator("#dataset")).to_have_value(re.compile(f"^{Path(name).stem}"))
    expect(form.locator("#upload-problem")).to_be_empty()


@pytest.mark.parametrize("name", REFUSED)
def test_odd_file_is_refused_with_what_to_do(form: Page, name: str) -> None:
    content, advice = REFUSED[name]
    choose(form, name, content)

    expect(form.locator("#upload-problem")).to_contain_text(advice)
    expect(form.locator("#dataset")).to_have_value("starter")
    expect(form.locator("#upload")).to_be_enabled()


def test_plain_text_is_taken_with_the_goal_that_it_is_made_for(form: Page) -> None:
    choose(form, "story.txt", b"Once upon a time.\n\nThere was a loss.\n" * 20)

    expect(form.locator("#dataset")).to_have_value("story")
    expect(form.get_by_role("button", name="Learn from text")).to_be_visible()
