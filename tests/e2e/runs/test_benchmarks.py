"""Benchmark a run in a browser, with the real worker, real models and lm-eval."""

import json
import re

import pytest
from playwright.sync_api import Page, expect

from tests.support.live_studio import Studio, get_run, submit_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

SENTENCES = ("The fox sat in the garden. ", "A small dog ran to the river. ")
TEXTS = "".join(json.dumps({"text": SENTENCES[n % 2] * (n + 3)}) + "\n" for n in range(8))


def test_texts_are_measured_before_and_after_training(page: Page, studio: Studio) -> None:
    number = submit_run(studio)
    data = {"name": "general"}
    studio.api.post("/datasets", files={"file": ("general.jsonl", TEXTS.encode())}, data=data)
    wait_until(lambda: get_run(studio, number)["status"] == "succeeded")
    page.goto(f"/runs/{number}/evaluation")
    page.get_by_role("button", name="Benchmark…").click()
    page.get_by_label("Rows from").last.select_option("general")
    page.get_by_role("button", name="Measure").click()

    section = page.get_by_role("article", name=re.compile("^general, version 1"))
    expect(section.get_by_role("progressbar")).to_have_count(2)
    # lm-eval takes half a minute to load, for each of both models.
    verdict = section.get_by_text(re.compile("^(Better|Worse|No clear difference)"))
    expect(verdict).to_be_visible(timeout=400_000)
    expect(section.get_by_role("row", name=re.compile("^Bits per byte"))).to_be_visible()

    (told,) = studio.api.get(f"/runs/{number}/benchmarks").json()["data"]
    assert told["metrics"][0]["tuned"]["n"] == len(TEXTS.splitlines())
    section.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Delete it").click()
    expect(section).to_have_count(0)
