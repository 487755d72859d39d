"""Evaluate a run in a browser, with the real worker and real models."""

import json
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.support.live_studio import QUICK, Studio, get_run, submit_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


def test_run_is_evaluated_and_worst_rows_come_first(page: Page, studio: Studio) -> None:
    number = submit_run(studio)
    wait_until(lambda: get_run(studio, number)["status"] == "succeeded")
    page.goto(f"/runs/{number}")
    page.get_by_role("navigation", name="Run", exact=True).get_by_text("Evaluation").click()
    page.locator("#evaluation").get_by_label("Number of rows").fill("12")
    page.locator("#evaluation").get_by_label("Longest answer, in tokens").fill("8")
    page.get_by_role("button", name="Evaluate").click()

    verdict = page.locator("#verdict-title")
    expect(verdict).to_have_text(re.compile("^(Better|Worse|Changed|No clear difference)"))
    loss = page.get_by_role("row", name=re.compile("^Loss"))
    expect(loss).to_contain_text(re.compile("better|worse|may be chance|same"))
    answers = page.get_by_role("table", name="Answers of both models")
    expect(answers.locator("tbody tr")).to_have_count(12)
    page.get_by_role("link", name="Least expected reference").click()
    expect(page).to_have_url(re.compile("sort=surprise"))
    expect(answers.locator("tbody tr")).to_have_count(12)

    told = studio.api.get(f"/runs/{number}/evaluations").json()["data"][0]
    losses = next(one for one in told["metrics"] if one["key"] == "loss")
    assert losses["tuned"]["value"] < losses["base"]["value"]

    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Delete it").click()
    expect(page.get_by_text("Did it get better?")).to_be_visible()


def test_finished_run_is_evaluated_by_itself(
    page: Page, make_studio: Callable[..., Studio]
) -> None:
    studio = make_studio(evaluates=True)
    number = submit_run(studio)
    page.goto(f"{studio.url}/runs/{number}")

    line = page.locator("#evaluation-line")
    expect(line.get_by_role("progressbar")).to_be_visible()
    # The bar is that of the evaluation: the run has come to its end.
    assert line.get_by_role("progressbar").evaluate("bar => bar.value") < 1
    expect(line).to_contain_text(re.compile("Better|Worse|Changed|No clear difference"))
    metrics = get_run(studio, number)["metrics"]
    assert {"evaluation_exact_share", "evaluation_loss"} <= set(metrics)


def test_classifier_is_compared_with_a_rule(page: Page, studio: Studio) -> None:
    rows = [
        {"text": f"{'Good' if number % 3 else 'Bad'} day {number}", "label": f"{number % 3 > 0}"}
        for number in range(60)
    ]
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    studio.api.post("/datasets", files={"file": ("days.jsonl", content)}).raise_for_status()
    recipe = QUICK | {"method": "classify", "dataset": "days", "samples": {}}
    answer = studio.api.post("/runs", json={"name": "days", "recipe": recipe})
    number = answer.raise_for_status().json()["id"]
    wait_until(lambda: get_run(studio, number)["status"] == "succeeded")
    page.goto(f"/runs/{number}")
    page.get_by_role("link", name="Evaluate it").click()
    page.get_by_label("Number of rows").fill("12")
    page.get_by_role("button", name="Evaluate").click()

    expect(page.locator("#verdict-title")).to_contain_text("right labels")
    expect(page.get_by_text("Rule: always the most common labels")).to_be_visible()
    expect(page.get_by_role("columnheader", name="Rule")).to_have_count(2)
    expect(page.get_by_role("row", name=re.compile("^Macro F1"))).to_be_visible()
