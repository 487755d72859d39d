"""The mapping screen in a browser: what is chosen shows at once, and one press is enough."""

import re

import pytest
from playwright.sync_api import FilePayload, Page, expect

from studio.intake.mapping_text import SHAPE_LABELS
from tests.support.live_studio import Studio

pytestmark = pytest.mark.e2e

REVIEWS = "text,label\n" + "".join(
    f"A film number {i},{'good' if i % 3 else 'bad'}\n" for i in range(12)
)


def bring(page: Page, content: str = REVIEWS, name: str = "films.csv") -> None:
    page.goto("/datasets")
    file = FilePayload(name=name, mimeType="text/csv", buffer=content.encode())
    page.get_by_label("File", exact=True).set_input_files(file)
    page.get_by_role("button", name="Upload").click()
    page.wait_for_url("**/mapping")


def told(page: Page, words: str) -> None:
    expect(page.locator("#preview")).to_contain_text(words)


def test_recognised_dataset_is_saved_with_one_click(page: Page, studio: Studio) -> None:
    bring(page)
    told(page, "Of all 12 rows, 12 are usable")
    page.get_by_role("button", name="Save dataset").click()

    page.wait_for_url(re.compile(r"/datasets/\d+$"))
    expect(page.get_by_role("heading", name="films", level=1)).to_be_visible()
    made = studio.api.get("/datasets").json()["data"][0]
    assert (made["name"], made["train_rows"], made["shape"]) == ("films", 12, "classification")


def test_mapping_choices_update_preview_and_are_saved(page: Page, studio: Studio) -> None:
    bring(page)
    page.get_by_label(re.compile("^bad")).fill("worth nothing")
    page.get_by_label(re.compile("^bad")).press("Tab")
    told(page, "worth nothing")

    page.get_by_text("Which rows").click()
    page.get_by_role("button", name="Add a filter").click()
    page.get_by_label("Column of filter 1").select_option("label")
    page.get_by_label("Value of filter 1").fill("bad")
    # Enter shows what it does; it uses nothing yet.
    page.get_by_label("Value of filter 1").press("Enter")
    told(page, "8 left out")
    page.get_by_role("button", name="Save dataset").click()
    page.wait_for_url(re.compile(r"/datasets/\d+$"))

    made = studio.api.get("/datasets").json()["data"][0]
    assert (made["train_rows"], made["removed"]) == (4, {"filtered": 8})
    assert made["mapping"]["values"] == {"label": {"bad": "worth nothing"}}


def test_unrecognised_columns_can_be_mapped_by_hand(page: Page) -> None:
    bring(page, "a,b\n1,2\n3,4\n", "odd.csv")
    page.get_by_label("Type", exact=True).select_option("Prompt and answer")
    page.get_by_label("a", exact=True).select_option("prompt")
    page.get_by_label("b", exact=True).select_option("completion")
    told(page, "Of all 2 rows, 2 are usable")
    page.get_by_role("button", name="Save dataset").click()

    page.wait_for_url(re.compile(r"/datasets/\d+$"))
    expect(page.locator(".turns-list > li")).to_have_count(2)


def test_invalid_sample_size_shows_error_at_field(page: Page) -> None:
    bring(page)
    page.get_by_text("Which rows").click()
    page.get_by_label("Sample size").fill("many")
    page.get_by_role("button", name="Save dataset").click()

    expect(page.locator("#sample-problem")).to_be_visible()
    expect(page.get_by_label("Sample size")).to_have_value("many")


def test_row_can_be_excluded_and_older_version_reused(page: Page) -> None:
    bring(page)
    page.get_by_role("button", name="Save dataset").click()
    page.wait_for_url(re.compile(r"/datasets/\d+$"))
    page.get_by_role("button", name="Exclude row 2").click()
    expect(page.locator(".versions .chosen")).to_contain_text("Row 3 excluded.")
    page.get_by_role("button", name="Use this version").click()

    expect(page.locator(".versions .chosen")).to_contain_text("Version 1 in use")


DROPPED = """([content, name]) => {
  const dropped = new DataTransfer();
  dropped.items.add(new File([content], name));
  return dropped;
}"""


def test_dropped_file_is_uploaded_and_can_be_discarded(page: Page) -> None:
    page.goto("/datasets")
    form = page.locator("form[data-module]")
    expect(form).to_have_attribute("data-booted", "done")
    dropped = page.evaluate_handle(DROPPED, [REVIEWS, "thrown away.csv"])
    form.dispatch_event("drop", {"dataTransfer": dropped})
    page.get_by_role("button", name="Upload").click()
    page.wait_for_url("**/mapping")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Discard it").click()

    page.wait_for_url("**/datasets")
    expect(page.get_by_role("link", name="thrown away")).to_have_count(0)


def test_other_columns_go_to_graders_once_the_type_is_chosen(page: Page) -> None:
    """And a column that is then set aside stays aside."""
    table = "question,answer,grade\n" + "".join(f"{n} and {n}?,{2 * n},easy\n" for n in range(9))
    bring(page, table, "school.csv")
    page.get_by_label("Type", exact=True).select_option(label=SHAPE_LABELS["task"])
    question, answer, grade = (
        page.get_by_label(name, exact=True) for name in ("question", "answer", "grade")
    )
    for role, value in ((question, "prompt"), (answer, "item"), (grade, "item")):
        expect(role).to_have_value(value)
    columns = page.locator("#preview dt")
    expect(columns).to_have_text(["answer", "grade"] * 5)

    grade.select_option("")
    expect(columns).to_have_text(["answer"] * 5)
    answer.select_option("system")
    answer.select_option("item")
    expect(grade).to_have_value("")
    page.get_by_role("button", name="Save dataset").click()
    page.wait_for_url(re.compile(r"/datasets/\d+$"))
    expect(page.get_by_role("heading", name="For graders")).to_have_count(9)
