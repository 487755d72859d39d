"""The form of a new experiment, as a person fills it: by hand, by text, by keyboard."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, Route, expect

from studio.commands import recipes
from studio.recipe.dotted_keys import flatten
from tests.support.live_studio import Studio
from tests.support.presses import Presser, write_csv

pytestmark = pytest.mark.e2e
WARM = True

RUN = re.compile(r"/runs/\d+$")


def rate(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Learning rate")


def changes(page: Page) -> Locator:
    return page.locator(".changes li a")


def newest(studio: Studio, count: int) -> list[Any]:
    """Return the recipes of the newest runs."""
    made = studio.api.get("/runs", params={"limit": count}).json()["data"]
    return [studio.api.get(f"/runs/{one['id']}").json()["recipe"] for one in made]


def test_preset_is_changed_and_run_started(page: Page, studio: Studio) -> None:
    page.goto("/new")
    page.get_by_role("button", name="Change goal").click()
    page.get_by_role("button", name="Balanced LoRA").click()
    page.wait_for_url("**/new?preset=lora")
    page.get_by_role("link", name="Edit all settings").click()
    rate(page).fill("1e-3")
    rate(page).blur()
    expect(changes(page)).to_have_text(["Learning rate"])
    page.get_by_role("button", name="Was 0.0002. Reset Learning rate").click()
    expect(rate(page)).to_have_value("0.0002")
    expect(page.locator(".changes h3")).to_have_text("Nothing changed since Balanced LoRA")

    page.get_by_text("Paste YAML").click()
    page.get_by_label("Recipe as YAML").fill(
        "optimisation:\n  max_steps: 2\n  sped: 1\nsamples: {prompts: 0}\n"
    )
    page.get_by_role("button", name="Fill in the form").click()
    expect(page.get_by_role("alert")).to_contain_text("no setting named optimisation.sped")
    text = page.get_by_label("Recipe as YAML")
    text.fill(text.input_value().replace("  sped: 1\n", ""))
    page.get_by_role("button", name="Fill in the form").click()
    expect(changes(page)).to_have_text(["Max steps", "Sample prompts"])
    page.locator("#start").click()

    page.wait_for_url(RUN)
    recipe = flatten(newest(studio, 1)[0])
    assert [recipe[key] for key in ("adapter.kind", "optimisation.max_steps")] == ["lora", 2]


def test_yaml_curl_and_python_start_same_run_as_form(
    page: Page, studio: Studio, tmp_path: Path
) -> None:
    page.goto("/new?preset=lora&optimisation.max_steps=1#settings")
    page.get_by_label("Name", exact=True).fill("it's mine")
    page.get_by_label("Rank-stabilised scaling").evaluate("box => box.click()")
    page.get_by_role("radio", name="Python").check(force=True)
    expect(page.locator("#as-python")).to_contain_text("'use_rslora': True")
    for name in ("yaml", "curl", "python", "openai"):
        text = page.locator(f"#as-{name}").text_content() or ""
        (tmp_path / name).write_text(text, encoding="utf-8")
    for command in (["bash", "curl"], [sys.executable, "python"], [sys.executable, "openai"]):
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    page.locator("#start").click()
    page.wait_for_url(RUN)

    written = recipes.load_recipe(tmp_path / "yaml", []).model_dump(mode="json")
    made = newest(studio, 4)
    # Which precision is recommended depends on the machine, whose speed is measured meanwhile.
    assert "auto" not in {run["precision"] for run in made}
    assert [run | {"precision": "auto"} for run in made] == [written | {"precision": "auto"}] * 4


def test_setting_search_finds_hidden_settings(page: Page) -> None:
    page.goto("/new?preset=lora")
    page.get_by_role("searchbox", name="Find a setting").fill("overfit")

    labels = page.locator(".recipe .field:visible label")
    expect(labels).to_have_text(["Weight decay", "LoRA dropout"])
    expect(page.get_by_role("status").filter(has_text="setting")).to_have_text("2 settings")
    page.keyboard.press("Enter")
    expect(page.get_by_role("searchbox", name="Find a setting")).to_be_focused()
    page.get_by_role("searchbox", name="Find a setting").fill("")
    expect(rate(page)).to_be_visible()
    expect(page.get_by_label("Weight decay")).to_be_hidden()


def test_missing_field_link_focuses_field(page: Page) -> None:
    page.goto("/new#settings")
    page.get_by_role("radio", name="Every setting").check(force=True)
    page.get_by_label("Weight decay").fill("2")
    page.keyboard.press("Tab")
    page.get_by_role("radio", name="Common").check(force=True)
    page.locator("#all-settings > summary").click()
    button = page.locator("#start")
    expect(button).to_have_text("Fix Weight decay to start")
    page.locator("#lacking").get_by_role("link", name="Weight decay").click()

    expect(page.get_by_label("Weight decay")).to_be_focused()


def test_rejected_form_keeps_values_and_view(page: Page) -> None:
    page.goto("/new?preset=lora#settings")
    page.get_by_label("Name", exact=True).fill("")
    page.get_by_label("LoRA rank").fill("0")
    page.get_by_role("radio", name="curl").check(force=True)
    page.get_by_role("button", name="Fix 2 settings to start").click()

    expect(page.get_by_role("alert")).to_contain_text("2 problems to fix")
    expect(page.get_by_label("LoRA rank")).to_have_value("0")
    expect(page.get_by_role("radio", name="Every setting")).to_be_checked()


def test_late_script_leaves_cursor_where_it_is(page: Page) -> None:
    held: list[Route] = []
    page.route("**/recipe_form.js*", lambda route: held.append(route))  # noqa: PLW0108 -- a method of C takes no wrapper
    page.goto("/new?preset=lora#settings")
    name = page.get_by_label("Name", exact=True)
    name.fill("")
    form = page.locator("[data-module*='recipe_form.js']")
    expect(form).to_have_attribute("data-booted", "")
    held.pop().continue_()
    expect(form).to_have_attribute("data-booted", "done")
    page.keyboard.type("mine")

    expect(name).to_have_value("mine")


def test_run_can_be_started_by_keyboard_alone(page: Page) -> None:
    page.goto("/new?preset=lora#settings")
    common = page.get_by_role("radio", name="Common")
    expect(common).to_be_visible()
    common.focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_label("Weight decay")).to_be_visible()
    page.get_by_label("Max steps").focus()
    page.keyboard.type("1")
    page.keyboard.press("Enter")

    page.wait_for_url(RUN)


def test_form_works_without_javascript(browser: Browser, studio: Studio) -> None:
    context = browser.new_context(base_url=studio.url, java_script_enabled=False)
    page = context.new_page()
    page.goto("/new?preset=lora")
    page.locator("#all-settings > summary").click()
    rate(page).fill("0.5")
    page.locator("label", has=page.get_by_role("radio", name="YAML")).click()
    page.get_by_role("button", name="Refresh").click()
    expect(page.locator("#as-yaml")).to_contain_text("learning_rate: 0.5")
    page.locator("label", has=page.get_by_role("radio", name="Common")).click()
    page.get_by_role("button", name="Reset Learning rate").first.click()

    expect(rate(page)).to_have_value("0.0002")
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["Every setting", "YAML"])
def test_every_form_view_is_accessible(
    browser: Browser, studio: Studio, scheme: str, view: str
) -> None:
    context = browser.new_context(
        base_url=studio.url,
        viewport={"width": 390, "height": 844},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = context.new_page()
    page.goto("/new?preset=lora&optimisation.learning_rate=2&precision=fp32#settings")
    page.locator("label", has=page.get_by_role("radio", name=re.compile(view))).click()
    page.get_by_text("Paste YAML").click()
    found = Axe().run(page).response["violations"]
    wide = page.evaluate("document.documentElement.scrollWidth")
    context.close()

    assert ([(one["id"], one["nodes"][0]["html"][:200]) for one in found], wide) == ([], 390)


def test_the_method_is_chosen_first_even_by_keyboard_on_a_phone(
    browser: Browser, studio: Studio
) -> None:
    texts = "\n\n".join(f"Text {number} is about {number}." for number in range(30))
    studio.api.post("/datasets", files={"file": ("notes.txt", texts)}, data={"name": "notes"})
    context = browser.new_context(base_url=studio.url, viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto("/new")
    page.get_by_role("button", name="Change goal").press("Enter")
    methods = page.get_by_role("group", name="What the model learns from").get_by_role("button")
    methods.first.focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/new?method=cpt&preset=lora")

    expect(page.locator(".decision .chosen")).to_have_text("Learn from text")
    options = page.get_by_role("combobox", name="Dataset").locator("option")
    expect(options.first).to_contain_text("notes (")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    context.close()


MAX_TAB_STOPS, MAX_PIXELS, MAX_PRESSES = 10, 800, 6


def test_start_is_near_the_top_for_eye_and_keyboard(browser: Browser, studio: Studio) -> None:
    context = browser.new_context(base_url=studio.url, viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto("/new")
    page.locator("#drop").wait_for()
    start = page.locator("#start").bounding_box()
    page.locator("h1").evaluate("title => { title.tabIndex = -1; title.focus(); }")
    stops = 0
    while not page.locator("#start").evaluate("one => one === document.activeElement"):
        page.keyboard.press("Tab")
        stops += 1
        assert stops <= MAX_TAB_STOPS
    context.close()

    assert start is not None
    assert start["y"] + start["height"] <= MAX_PIXELS


def test_own_csv_is_trained_on_in_few_presses(page: Page, studio: Studio, tmp_path: Path) -> None:
    hand = Presser()
    page.goto("/settings")
    hand.press(page.get_by_role("navigation", name="Main").locator("[href='/new']"))
    hand.choose_file(page, write_csv(tmp_path / "mine.csv", "instruction,output"))
    expect(page.locator("#dataset")).to_have_value("mine")
    expect(page.locator("#dataset-facts")).to_contain_text("40 rows")
    hand.press(page.locator("#start"))
    page.wait_for_url(RUN)

    assert newest(studio, 1)[0]["dataset"] == "mine"
    assert hand.count <= MAX_PRESSES


def test_csv_of_unknown_columns_is_mapped_in_between(
    page: Page, studio: Studio, tmp_path: Path
) -> None:
    hand = Presser()
    page.goto("/settings")
    hand.press(page.get_by_role("navigation", name="Main").locator("[href='/new']"))
    page.get_by_label("Name", exact=True).fill("odd columns")
    hand.choose_file(page, write_csv(tmp_path / "odd.csv", "foo,bar"))
    hand.press(page.get_by_role("button", name="Save dataset"))
    page.wait_for_url("**/new?**dataset=odd")
    expect(page.get_by_label("Name", exact=True)).to_have_value("odd columns")
    hand.press(page.locator("#start"))
    page.wait_for_url(RUN)

    assert newest(studio, 1)[0]["dataset"] == "odd"
    assert hand.count <= MAX_PRESSES


def test_unreadable_file_is_refused_in_the_data_card(page: Page, tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    page.goto("/new")
    page.locator("#upload").set_input_files(tmp_path / "picture.png")

    expect(page.locator(".decision #upload-problem")).not_to_be_empty()
    expect(page.locator("#dataset")).to_have_value("starter")


def write_large_csv(path: Path) -> Path:
    """Write a file that is sent in parts and read by a task."""
    words = "word " * 400
    with path.open("w", encoding="utf-8") as file:
        file.write("prompt,completion\n")
        file.writelines(f"What is {at}?,{at} {words}\n" for at in range(9_000))
    assert path.stat().st_size > 16 * 2**20
    return path


def test_large_file_is_imported_without_leaving_the_form(page: Page, tmp_path: Path) -> None:
    path = write_large_csv(tmp_path / "large.csv")
    page.goto("/new")
    page.get_by_label("Name", exact=True).fill("kept")
    page.locator("#upload").set_input_files(path)

    expect(page.locator("#drop progress")).to_be_visible()
    expect(page.locator("#dataset")).to_have_value("large")
    expect(page.locator("#dataset-facts")).to_contain_text("rows")
    expect(page.locator("#drop progress")).to_be_hidden()
    expect(page.get_by_label("Name", exact=True)).to_have_value("kept")
    expect(page).to_have_url(re.compile(r"/new$"))


def test_upload_is_cancelled_and_another_file_chosen(page: Page, tmp_path: Path) -> None:
    path = write_large_csv(tmp_path / "unwanted.csv")
    held: list[Route] = []
    page.route("**/api/v1/uploads/*", lambda route, _: held.append(route))
    page.goto("/new")
    page.locator("#upload").set_input_files(path)
    cancel = page.locator("#drop").get_by_role("button", name="Cancel")
    cancel.press("Enter")

    expect(cancel).to_be_hidden()
    expect(page.locator("#upload-problem")).to_be_hidden()
    expect(page.locator("#dataset")).to_have_value("starter")
    page.unroute("**/api/v1/uploads/*")
    page.locator("#upload").set_input_files(write_csv(tmp_path / "wanted.csv", "prompt,completion"))
    expect(page.locator("#dataset")).to_have_value("wanted")


def test_large_file_that_cannot_be_read_is_refused_in_the_data_card(
    page: Page, tmp_path: Path
) -> None:
    path = tmp_path / "broken.parquet"
    path.write_bytes(b"PAR1" + bytes(17 * 2**20))
    page.goto("/new")
    page.locator("#upload").set_input_files(path)

    expect(page.locator(".decision #upload-problem")).not_to_be_empty()
    expect(page.locator("#dataset")).to_have_value("starter")
    expect(page).to_have_url(re.compile(r"/new$"))


def test_what_is_entered_before_the_form_is_ready_counts(page: Page, tmp_path: Path) -> None:
    """Modules load after the page is drawn: on a slow line a person is faster."""
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    held: list[Route] = []
    page.route("**/pages/recipe_form.js*", lambda route, _: held.append(route))
    page.goto("/new?preset=lora")
    page.get_by_role("searchbox", name="Find a setting").fill("overfit")
    page.locator("#upload").set_input_files(tmp_path / "picture.png")
    for route in held:
        route.continue_()

    expect(page.get_by_role("status").filter(has_text="setting")).to_have_text("2 settings")
    expect(page.locator(".decision #upload-problem")).not_to_be_empty()


def test_model_is_chosen_from_the_catalogue_by_keyboard(page: Page) -> None:
    page.goto("/new?preset=lora")
    page.get_by_role("button", name="All models").press("Enter")
    dialog = page.get_by_role("dialog", name="Choose a model")
    page.get_by_role("searchbox", name="Filter models").fill("smollm2-135m")
    rows = dialog.get_by_role("listitem")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("Fits")
    rows.get_by_role("button").press("Enter")

    expect(dialog).to_be_hidden()
    expect(page.get_by_label("Base model")).to_have_value("HuggingFaceTB/SmolLM2-135M-Instruct")
    expect(page.locator("#base_model-facts")).to_contain_text("269 MB to download")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("button", ["All datasets", "All models", "Change goal"])
def test_every_chooser_is_accessible_on_a_phone(
    browser: Browser, studio: Studio, scheme: str, button: str
) -> None:
    context = browser.new_context(
        base_url=studio.url,
        viewport={"width": 390, "height": 844},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = context.new_page()
    page.goto("/new")
    page.get_by_role("button", name=button).click()
    expect(page.get_by_role("dialog")).to_be_visible()
    found = Axe().run(page).response["violations"]
    wide = page.evaluate("document.documentElement.scrollWidth")
    context.close()

    assert ([(one["id"], one["nodes"][0]["html"][:200]) for one in found], wide) == ([], 390)
