"""The table of runs in a real browser: typed into, sorted, grouped, ticked, undone, exported."""

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from studio.db.session import open_engine, unit_of_work
from studio.services.runs import attempts, bulk_actions
from tests.support.factories import make_finished_run, metrics_event
from tests.support.live_studio import Studio, stop_everything
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

LOSSES = {"alpha": 0.5, "beta": 0.25, "gamma": 0.75}


@pytest.fixture(scope="module")
def table_studio(starter_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    """Share a studio with three runs that have ended; each test leaves these three."""
    studio = Studio.copied(starter_home, tmp_path_factory.mktemp("table") / "home")
    studio.worker = False
    engine = open_engine(studio.home / "studio.db")
    with unit_of_work(engine) as db:
        for name, loss in LOSSES.items():
            run = make_finished_run(db, name, precision="fp32" if name == "alpha" else "bf16")
            attempts.apply_events(db, run, [metrics_event(11, eval_loss=loss)], 2000)
    engine.dispose()
    studio.start()
    yield studio
    stop_everything(studio)


@pytest.fixture
def table(browser: Browser, table_studio: Studio) -> Iterator[Page]:
    context = browser.new_context(
        base_url=table_studio.url, viewport={"width": 1440, "height": 900}, reduced_motion="reduce"
    )
    context.set_default_timeout(120_000)
    page = context.new_page()
    page.goto("/")
    expect_keys_heard(page)
    yield page
    context.close()


@contextmanager
def more(studio: Studio, name: str, count: int) -> Iterator[None]:
    """Add runs of a name for as long as a test looks at them."""
    with unit_of_work(open_engine(studio.home / "studio.db")) as db:
        added = [make_finished_run(db, name).id or 0 for _ in range(count)]
    yield
    with unit_of_work(open_engine(studio.home / "studio.db")) as db:
        bulk_actions.move_to_trash(db, added)


def expect_keys_heard(page: Page) -> None:
    """Wait for the table's script: before it, keys mean nothing."""
    expect(page.locator("section[data-booted='done']")).to_have_count(1)


def expect_names(page: Page, *names: str) -> None:
    expect(page.locator("#rows tr[data-run] th a")).to_have_text([*names])


@pytest.mark.smoke
def test_search_filters_live_and_invalid_query_keeps_rows(table: Page) -> None:
    table.keyboard.press("/")
    table.keyboard.type("eval_loss<0.6", delay=20)
    expect_names(table, "beta", "alpha")
    assert table.url.endswith("/?q=eval_loss%3C0.6")

    table.get_by_role("combobox", name="Search").fill("eval_loss<0.6 stauts:x")
    expect(table.get_by_text("Did you mean status?")).to_be_visible()
    expect_names(table, "beta", "alpha")
    table.get_by_role("combobox", name="Search").fill("eval_loss<0.6")
    expect(table.get_by_text("Did you mean status?")).to_have_count(0)
    table.get_by_role("link", name="Remove filter eval_loss<0.6").click()
    expect_names(table, "gamma", "beta", "alpha")
    expect(table.get_by_role("combobox", name="Search")).to_have_value("")


def test_search_suggestions_complete_by_keyboard(table: Page) -> None:
    table.keyboard.press("/")
    box = table.get_by_role("combobox", name="Search")
    offers = table.get_by_role("listbox", name="Suggestions").get_by_role("option")
    table.keyboard.type("prec", delay=20)
    expect(offers.first).to_have_text("precision:Precision")
    table.keyboard.press("Tab")
    expect(box).to_have_value("precision:")
    table.keyboard.type("fp3", delay=20)
    expect(offers.first).to_have_text("fp32")
    table.keyboard.press("ArrowDown")
    expect(box).to_have_attribute("aria-activedescendant", "offered-1")
    table.keyboard.press("Enter")

    expect(box).to_have_value("precision:fp32 ")
    expect_names(table, "alpha")
    expect(offers).to_have_count(0)


def test_column_headers_sort_and_back_restores_sort(table: Page) -> None:
    table.get_by_role("link", name="Validation loss").click()
    expect_names(table, "beta", "alpha", "gamma")
    table.get_by_role("link", name="Validation loss").click()
    expect_names(table, "gamma", "alpha", "beta")
    table.go_back()

    expect_names(table, "beta", "alpha", "gamma")


def test_first_report_fetches_no_row_again(table: Page) -> None:
    briefs = table.evaluate("async () => (await fetch('/api/v1/runs')).json()")["data"]
    told = "".join(f"event: runs\ndata: {json.dumps(one)}\n\n" for one in (briefs, briefs[-1:]))
    table.route(
        "**/api/v1/stream", lambda route: route.fulfill(content_type="text/event-stream", body=told)
    )
    with table.expect_request("**/runs/*/line*") as first:
        table.reload()

    assert f"/runs/{briefs[-1]['id']}/line" in first.value.url


def test_late_answer_for_a_row_changes_that_row_only(table: Page) -> None:
    held: list[Route] = []
    row = table.locator("#rows tr[data-run]").first
    line = f"**/runs/{row.get_attribute('data-run')}/line*"
    table.route(line, lambda route: held.append(route))  # noqa: PLW0108 -- a method of C takes no wrapper
    # The studio reports on its runs at any time, so that this row may be on its way already: then
    # htmx queues the request that is asked for here. Whichever comes first is held back.
    row.evaluate("row => htmx.trigger(row, 'run-changed')")
    wait_until(lambda: bool(table.title() and held))
    table.get_by_role("link", name="Validation loss").click()
    expect_names(table, "beta", "alpha", "gamma")
    with table.expect_response(line) as answer:
        held.pop(0).continue_()
    assert "gamma" in answer.value.text()
    table.evaluate("() => new Promise(requestAnimationFrame)")

    expect_names(table, "beta", "alpha", "gamma")


def test_groups_expand_on_click(table: Page) -> None:
    table.get_by_label("Group by").fill("precision")
    table.keyboard.press("Enter")
    fold = table.get_by_role("button", name="bf16")
    expect(table.locator("tr.bunch").filter(has_text="bf16")).to_contain_text("0.5 ± 0.3536")
    expect_names(table)
    fold.click()

    expect_names(table, "gamma", "beta")
    expect(fold).to_have_attribute("aria-expanded", "true")


def test_rows_can_be_selected_by_keyboard_and_tagged(table: Page) -> None:
    table.keyboard.press("ArrowDown")
    table.keyboard.press("Space")
    table.keyboard.press("ArrowDown")
    table.keyboard.press("Space")
    bar = table.get_by_role("form", name="Selected runs")
    expect(bar.get_by_text("2 runs selected")).to_be_visible()
    bar.get_by_label("Tag").fill("good")
    bar.get_by_role("button", name="Add tag").click()

    expect(table.locator("#rows .chip")).to_have_text(["good", "good"])
    expect(table.get_by_text("2 runs tagged.")).to_be_visible()
    table.get_by_role("button", name="Undo").click()
    expect(table.locator("#rows .chip")).to_have_count(0)


def test_all_matching_runs_can_be_tagged_and_undone(table: Page, table_studio: Studio) -> None:
    with more(table_studio, "many", 60):
        table.goto("/?q=many")
        table.get_by_label("Select all runs shown").check()
        bar = table.get_by_role("form", name="Selected runs")
        expect(bar.get_by_text("50 runs selected")).to_be_visible()
        bar.get_by_label("all 60 matching").check()
        expect(bar.get_by_text("60 runs selected")).to_be_visible()
        bar.get_by_label("Tag").fill("good")
        bar.get_by_role("button", name="Add tag").click()
        expect(table.get_by_text("60 runs tagged.")).to_be_visible()
        table.get_by_role("button", name="Undo").click()

        expect(table.get_by_text("60 runs no longer tagged.")).to_be_visible()


def test_trashed_run_can_be_restored(table: Page) -> None:
    table.get_by_label("Select run 2, beta").check()
    table.get_by_role("button", name="Move to trash").click()
    expect_names(table, "gamma", "alpha")
    table.get_by_role("button", name="Undo").click()

    expect_names(table, "gamma", "beta", "alpha")


def test_row_can_be_edited_by_keyboard(table: Page, table_studio: Studio) -> None:
    with more(table_studio, "new", 1):
        table.reload()
        expect_keys_heard(table)
        expect_names(table, "new", "gamma", "beta", "alpha")
        table.keyboard.press("ArrowDown")
        table.keyboard.press("e")
        expect(table.get_by_label("Name", exact=True)).to_be_focused()
        table.get_by_label("Name", exact=True).fill("delta")
        table.get_by_label("Tags", exact=True).fill("to show, good")
        table.get_by_label("Notes", exact=True).fill("Two lines\nof it")
        table.keyboard.press("Control+Enter")

        expect_names(table, "delta", "gamma", "beta", "alpha")
        expect(table.locator("#rows .chip")).to_have_text(["to show", "good"])


def test_csv_export_matches_shown_table(table: Page) -> None:
    table.goto("/?q=eval_loss<0.6&sort=eval_loss&cols=precision,eval_loss")
    table.locator("#export summary").click()
    with table.expect_download() as download:
        table.get_by_role("link", name="CSV").click()
    rows = list(csv.reader(download.value.path().read_text(encoding="utf-8").splitlines()))
    shown = table.locator("#rows tr[data-run]").all()

    assert rows == [
        ["id", "name", "precision", "eval_loss"],
        ["2", "beta", "bf16", "0.25"],
        ["1", "alpha", "fp32", "0.5"],
    ]
    assert [row.locator("td").all_inner_texts()[1:] for row in shown] == [
        one[2:] for one in rows[1:]
    ]


def test_saved_view_can_be_reopened(table: Page) -> None:
    table.goto("/?q=eval_loss<0.6&sort=eval_loss")
    table.locator("#views summary").click()
    table.get_by_label("Name of this view").fill("the best")
    table.get_by_role("button", name="Save view").click()
    expect(table.locator("#views .menu-list a")).to_have_text(["the best"])
    table.goto("/")
    table.locator("#views summary").click()
    table.get_by_role("link", name="the best").click()

    expect_names(table, "beta", "alpha")
