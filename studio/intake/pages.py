"""Conversations of a converted file, a page at a time."""

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from studio.intake.turns import Turn

PAGE_BYTES = 4 * 2**20
"""A page of very long rows ends early, so that it can be sent and drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedRow:
    number: int
    messages: list[Turn]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    rows: list[NumberedRow]
    has_more: bool

    @property
    def next_after(self) -> int | None:
        return self.rows[-1].number if self.has_more else None


def read_page(path: Path, *, after: int, limit: int) -> Page:
    """Return the conversations behind number `after`."""
    found: list[NumberedRow] = []
    size = 0
    with path.open("rb") as file:
        for number, line in islice(enumerate(file, 1), after, None):
            size += len(line)
            if len(found) == limit or (found and size > PAGE_BYTES):
                return Page(rows=found, has_more=True)
            found.append(NumberedRow(number=number, messages=json.loads(line)["messages"]))
    return Page(rows=found, has_more=False)
