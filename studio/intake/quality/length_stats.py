"""How long the rows of a data set are, in tokens: counted once, then asked of any cut.

Lengths and places are counted by their very number as long as few are different: only where there
are more than 10,000 different ones, those above 8,192 are counted by steps of 1,024, and then only
what a cut at a multiple of 1,024 does is known exactly.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter

MAX_DISTINCT = 10_000
"""How many different numbers a spread tells apart, at least; it never holds more."""
EXACT_UP_TO = 8_192
BUCKET_SIZE = 1_024
MAX_LENGTH = 1_048_576
"""No example may be longer."""
MAX_LONGEST_ROWS = 100
"""How many of the longest rows are told by number."""
MAX_SHORTEST_ROWS = 20
"""How many of the shortest are, and of the rows that are refused for one reason."""
MAX_REASONS = 20
OTHER_REASONS = "other reasons"


class TokenCountJob(BaseModel):
    """What is to be counted, and as which model sees it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    about: str
    """In words."""
    rows: str
    """The hash of the rows."""
    state: str
    """Changes with the model's tokenizer."""
    model: str
    """A folder, or a name on the hub."""
    code: str = ""
    """The hash of the model's own code that was allowed to run; empty runs none."""
    chat_template: Literal["model", "chatml", "plain"]
    train: Path
    validation: Path | None


@dataclass(frozen=True, slots=True)
class RowLength:
    tokens: int
    number: int
    """Counted from one, in its part."""


@dataclass(slots=True)
class RefusedRows:
    """Rows that the chat template will not write, for one reason."""

    rows: int = 0
    numbers: list[int] = field(default_factory=list)
    """Of the first of them."""


@dataclass(slots=True, kw_only=True)
class NumberCounts:
    """How often each of many whole numbers was counted."""

    times: Counter[int] = field(default_factory=Counter)
    """By the number; where they are gathered, above 8,192 by the end of its step."""
    sums: Counter[int] = field(default_factory=Counter)
    """Of the numbers that were gathered, by the end of their step."""
    is_gathered: bool = False

    def add(self, number: int, times: int = 1) -> None:
        if self.is_gathered and number > EXACT_UP_TO:
            end = min(-(-number // BUCKET_SIZE) * BUCKET_SIZE, MAX_LENGTH + BUCKET_SIZE)
            self.sums[end] += number * times
            number = end
        self.times[number] += times
        if not self.is_gathered and len(self.times) > MAX_DISTINCT:
            self._bucket()

    def is_exact_at(self, at: int) -> bool:
        """Tell whether what lies above this number is known exactly."""
        return not self.is_gathered or at <= EXACT_UP_TO or at % BUCKET_SIZE == 0

    def count_above(self, at: int) -> int:
        """Count the numbers above `at`, or above the nearest place below it that is known."""
        near = self._nearest_known(at)
        return sum(times for number, times in self.times.items() if number > near)

    def sum_above(self, at: int) -> int:
        """Add up by how much the numbers exceed `at`, or the nearest place below it."""
        near = self._nearest_known(at)
        return sum(
            self.sums.get(number, number * times) - near * times
            for number, times in self.times.items()
            if number > near
        )

    def _nearest_known(self, at: int) -> int:
        return at if self.is_exact_at(at) else at // BUCKET_SIZE * BUCKET_SIZE

    def _bucket(self) -> None:
        self.is_gathered = True
        far = {number: times for number, times in self.times.items() if number > EXACT_UP_TO}
        for number in far:
            del self.times[number]
        for number, times in far.items():
            self.add(number, times)


@dataclass(slots=True, kw_only=True)
class PartStats:
    """The rows of one part of a data set, counted. It stays small however many there are."""

    rows: int = 0
    """Those that could be written."""
    tokens: int = 0
    learnt: int = 0
    most_learnt: int = 0
    """Of one row; nothing where it was counted before this was asked."""
    roles: Counter[str] = field(default_factory=Counter)
    """Tokens by who says them; `text` of rows without turns, `template` of what is around."""
    learnt_roles: Counter[str] = field(default_factory=Counter)
    """Of those, the ones that are learnt."""
    lengths: NumberCounts = field(default_factory=NumberCounts)
    """Rows by their length in tokens."""
    needs: NumberCounts = field(default_factory=NumberCounts)
    """Rows by the least length of an example that leaves something to learn."""
    edges: NumberCounts = field(default_factory=NumberCounts)
    """Where stretches of learnt tokens end, less where they begin: places of tokens from one, the
    beginning one before. What they exceed a cut by, added up, is what is learnt behind it."""
    unlearnt: int = 0
    """Rows without anything to learn, however long an example may be."""
    left_out: int = 0
    """Rows whose answer was judged bad."""
    refused: dict[str, RefusedRows] = field(default_factory=dict)
    """By the reason."""
    longest: list[RowLength] = field(default_factory=list)
    shortest: list[RowLength] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStats:
    train: PartStats
    validation: PartStats | None = None
    """None where each run holds a share of the rows back."""

    @property
    def parts(self) -> dict[str, PartStats]:
        found = {"train": self.train, "validation": self.validation}
        return {name: part for name, part in found.items() if part}


TOKEN_STATS_ADAPTER = TypeAdapter(TokenStats)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """What is lost where examples may have no more than so many tokens."""

    at: int
    total_rows: int
    """Rows there are."""
    rows: int
    """That are longer."""
    tokens: int
    """Behind the cut."""
    learnt: int
    """Of those, how many would have been learnt."""
    emptied: int
    """Rows that are cut before anything they teach."""
    is_exact: bool
    """Else figures may be those of the multiple of 1,024 below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramBar:
    """Rows of about the same length."""

    first: int
    last: int
    rows: int
    cut: int
    """How many of them are longer than the cut."""


def measure_truncation(parts: Sequence[PartStats], at: int) -> Truncation:
    """Say what a longest example of `at` tokens would cost."""
    return Truncation(
        at=at,
        total_rows=sum(part.rows for part in parts),
        rows=sum(part.lengths.count_above(at) for part in parts),
        tokens=sum(part.lengths.sum_above(at) for part in parts),
        learnt=sum(part.edges.sum_above(at) for part in parts),
        emptied=sum(part.needs.count_above(at) for part in parts),
        is_exact=all(
            spread.is_exact_at(at)
            for part in parts
            for spread in (part.lengths, part.needs, part.edges)
        ),
    )


def length_quantile(tally: PartStats, share: float) -> int:
    """Return the length that this share of the rows does not exceed."""
    wanted, seen = math.ceil(share * tally.rows), 0
    for length, rows in sorted(tally.lengths.times.items()):
        seen += rows
        if seen >= wanted:
            return min(length, tally.longest[0].tokens)
    return 0


def build_bars(parts: Sequence[PartStats], at: int) -> list[list[HistogramBar]]:
    """Gather lengths into histograms, four bars to a doubling, from the shortest to the longest.

    Each part has the same bars, so that they can stand side by side.
    """
    ends = list(_bar_ends())
    found = [_count_bars(part, ends, at) for part in parts]
    places = [place for counts, _ in found for place in counts]
    if not places:
        return [[] for _ in parts]
    return [
        [
            HistogramBar(
                first=ends[i - 1] + 1 if i else 1, last=ends[i], rows=counts[i], cut=behind[i]
            )
            for i in range(min(places), max(places) + 1)
        ]
        for counts, behind in found
    ]


def _count_bars(part: PartStats, ends: list[int], at: int) -> tuple[Counter[int], Counter[int]]:
    counts, behind = Counter[int](), Counter[int]()
    for length, rows in part.lengths.times.items():
        place = min(bisect_left(ends, length), len(ends) - 1)
        counts[place] += rows
        behind[place] += rows if length > at else 0
    return counts, behind


def _bar_ends() -> Iterator[int]:
    """Yield the last length of each bar: 1 to 8 one by one, then 10, 12, 14, 16, 20, 24 and on."""
    yield from range(1, 8)
    size = 8
    while size <= MAX_LENGTH:
        yield from (size, size + size // 4, size + size // 2, size + size * 3 // 4)
        size *= 2
