"""The starter's instruction rows: 16 tasks, split so that no question is in both parts."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Literal

from tests.tools.starter import multi_turn, questions, text_tasks
from tests.tools.starter.chat import Row

Split = Literal["train", "validation"]
RowMaker = Callable[[Random], Row]

TASK_COUNTS: dict[RowMaker, int] = {
    questions.capital: 130,
    questions.opposite: 170,
    questions.plural: 130,
    questions.category: 150,
    questions.larger: 200,
    questions.date: 200,
    text_tasks.find_name: 200,
    text_tasks.find_fact: 260,
    text_tasks.as_form: 220,
    text_tasks.sentiment: 200,
    text_tasks.summary: 200,
    text_tasks.polite: 200,
    text_tasks.past_tense: 200,
    multi_turn.next_fact: 200,
    multi_turn.next_detail: 180,
    multi_turn.remembered_name: 120,
}
"""Rows per task, over both splits."""

_HELD_OUT = 11
"""One row in this many is for validation."""


def generate_rows(split: Split) -> Iterator[Row]:
    """Yield the rows of a split, shuffled and deterministic."""
    rng = Random(20)  # noqa: S311 -- chooses examples, guards nothing
    mixed = _generate_distinct(rng)
    rng.shuffle(mixed)
    for number, row in enumerate(mixed):
        if (number % _HELD_OUT == 0) == (split == "validation"):
            yield row


def _generate_distinct(rng: Random) -> list[Row]:
    """Generate the rows of all tasks, without repeating a question and answer."""
    distinct: dict[tuple[str, str], Row] = {}
    for make, count in TASK_COUNTS.items():
        goal = len(distinct) + count
        while len(distinct) < goal:
            row = make(rng)
            question, answer = row["messages"][-2:]
            distinct.setdefault((question["content"], answer["content"]), row)
    return list(distinct.values())
