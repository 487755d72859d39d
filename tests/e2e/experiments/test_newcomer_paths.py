"""A newcomer's path with each kind of data: choose a file, start, watch, try the model."""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.e2e

RUN = re.compile(r"/runs/\d+$")
SUMS = [(one, two) for one in range(6) for two in range(6)]
FRUIT = [f"{size} {fruit}" for size in ("One", "A ripe", "His") for fruit in ("apple", "pear")]
TOOLS = [f"{size} {tool}" for size in ("One", "A heavy", "His") for tool in ("hammer", "saw")]


def lines(rows: Iterable[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def chat(page: Page) -> None:
    page.get_by_role("link", name="Chat", exact=True).first.click()
    page.locator(".chat-try").first.click()
    said = page.get_by_role("status").filter(has_text="Your model:")
    expect(said).to_have_text(re.compile("Base model: .*Your model: ", re.DOTALL))


def score(page: Page) -> None:
    page.get_by_label("Prompt", exact=True).fill("What is 1 plus 1?")
    page.get_by_label("Answer", exact=True).fill("It is 2.")
    page.get_by_role("button", name="Score it").click()
    expect(page.locator("#try-result")).to_contain_text(re.compile(r"-?\d"))


def find_label(page: Page) -> None:
    page.get_by_label("Text", exact=True).fill("A ripe apple")
    page.get_by_role("button", name="Find its label").click()
    expect(page.locator("#try-result")).to_contain_text("fruit")
    expect(page.locator("#try-result")).to_contain_text("tool")


def find_number(page: Page) -> None:
    page.get_by_label("Text", exact=True).fill("3 parcels")
    page.get_by_role("button", name="Find its numbers").click()
    expect(page.locator("#try-result")).to_contain_text(re.compile(r"-?\d"))


def check_steps(page: Page) -> None:
    page.get_by_label("Prompt", exact=True).fill("What is 1 plus 1?")
    page.get_by_label("Steps, one on each line", exact=True).fill("1 plus 0 is 1.\n1 plus 1 is 3.")
    page.get_by_role("button", name="Check it").click()
    steps = page.locator("#try-result li")
    expect(steps).to_have_count(2)
    expect(steps.last).to_contain_text("1 plus 1 is 3.")
    expect(steps.last).to_contain_text(re.compile(r"\d %"))


def find_entities(page: Page) -> None:
    page.get_by_label("Text", exact=True).fill("Ada Bell lives in Rome.")
    page.get_by_role("button", name="Find entities").click()
    expect(page.locator("#try-result .entities")).to_contain_text("Ada")
    expect(page.locator("#try-result")).to_contain_text("tokens read")


@dataclass(frozen=True)
class Path:
    file: str
    content: bytes
    goal: str
    tile: str
    """A figure that counts for the method."""
    use: Callable[[Page], None]
    offered_in: str = "#goal-fit"
    """Where the form offers the goal: as what the file is made for, as the only one that can read
    it, or among all goals."""
    is_checked: bool = False
    """Whether a person looks at the columns first, because numbers may be anything."""


PATHS = {
    "dpo": Path(
        "pairs.jsonl",
        lines(
            {
                "prompt": f"What is {one} plus {two}?",
                "chosen": f"It is {one + two}.",
                "rejected": f"It is {one + two + 1}, or so.",
            }
            for one, two in SUMS
        ),
        "Learn from comparisons",
        "Validation preference accuracy",
        chat,
    ),
    "kto": Path(
        "thumbs.jsonl",
        lines(
            {
                "prompt": f"What is {one} plus {two}?",
                "completion": f"It is {one + two + one % 2}.",
                "label": one % 2 == 0,
            }
            for one, two in SUMS
        ),
        "Learn from ratings",
        "Validation rating margin",
        chat,
    ),
    "classify": Path(
        "things.csv",
        "".join(
            ["text,label\n"]
            + [
                f"{text},{label}\n"
                for label, texts in (("fruit", FRUIT), ("tool", TOOLS))
                for text in texts
            ]
        ).encode(),
        "Learn labels",
        "Validation accuracy",
        find_label,
    ),
    "regress": Path(
        "weights.csv",
        "".join(["text,score\n", *(f"{one} parcels,{one * 1.5}\n" for one in range(30))]).encode(),
        "Learn numbers",
        "Validation R²",
        find_number,
        is_checked=True,
    ),
    "prm": Path(
        "solutions.jsonl",
        lines(
            {
                "prompt": f"What is {one} plus {two}?",
                "completions": [
                    f"{one} plus 0 is {one}.",
                    f"{one} plus {two} is {one + two + wrong}.",
                ],
                "labels": [True, not wrong],
            }
            for one, two in SUMS
            for wrong in (0, 1)
        ),
        "Learn to check steps",
        "Validation F1 of wrong steps",
        check_steps,
        offered_in="#dataset-facts",
    ),
    "tokens": Path(
        "people.jsonl",
        lines(
            {
                "tokens": [name, "lives", "in", town, "."],
                "ner_tags": ["B-person", "O", "O", "B-town", "O"],
            }
            for name in ("Ada", "Bo", "Cy", "Di", "Ed", "Fay")
            for town in ("Rome", "Oslo", "Bern", "Lyon", "York", "Bath")
        ),
        "Learn to find entities",
        "Validation F1 of entities",
        find_entities,
        offered_in="#dataset-facts",
    ),
    "reward": Path(
        "answers.jsonl",
        lines(
            {
                "prompt": f"What is {one} plus {two}?",
                "chosen": f"It is {one + two}.",
                "rejected": f"It is {one + two + 1}, or so.",
            }
            for one, two in SUMS
        ),
        "Learn to score answers",
        "Validation preference accuracy",
        score,
        offered_in="#choose-goal",
    ),
}


@pytest.mark.parametrize("method", PATHS)
def test_newcomer_trains_on_a_file_and_tries_the_model(method: str, page: Page) -> None:
    path = PATHS[method]
    page.goto("/new?optimisation.max_steps=2")
    file = {"name": path.file, "mimeType": "text/plain", "buffer": path.content}
    page.locator("#upload").set_input_files(file)  # type: ignore[arg-type] # a dict is one
    if path.is_checked:
        page.get_by_role("button", name="Save dataset").click()
    expect(page.locator("#dataset")).to_have_value(re.compile(f"^{path.file.split('.')[0]}"))
    if path.offered_in == "#choose-goal":
        page.get_by_role("button", name="Change goal").click()
    page.locator(path.offered_in).get_by_role("button", name=path.goal).click()
    expect(page.locator("input[name=method]")).to_have_value(method)
    page.locator("#start").click()

    page.wait_for_url(RUN)
    expect(page.locator("#head")).to_contain_text("succeeded")
    expect(page.get_by_text(path.tile).first).to_be_visible()
    path.use(page)
