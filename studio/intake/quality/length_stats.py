"""Token length statistics of a dataset: counted once, then evaluated for any max length.

Lengths and positions are counted exactly while there are few distinct ones. Beyond 10,000 distinct
values, those above 8,192 are counted in buckets of 1,024, and then only the effect of truncating at
a multiple of 1,024 is known exactly.
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
"""Maximum number of distinct values held."""
EXACT_UP_TO = 8_192
BUCKET_SIZE = 1_024
MAX_LENGTH = 1_048_576
"""Maximum length of an example, in tokens."""
MAX_LONGEST_ROWS = 100
"""How many of the longest rows are listed."""
MAX_SHORTEST_ROWS = 20
"""How many of the shortest rows, and of the rows rejected for one reason, are listed."""
MAX_REASONS = 20
OTHER_REASONS = "other reasons"


class TokenCountJob(BaseModel):
    """What to count, and with which model's tokenizer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    about: str
    """What the job is about, for display."""
    rows: str
    """Hash of the rows."""
    state: str
    """Changes with the model's tokenizer."""
    model: str
    """A folder, or a repository on Hugging Face."""
    code: str = ""
    """Hash of the model's own code that was allowed to run; empty runs none."""
    chat_template: Literal["model", "chatml", "plain", "none"]
    with_bad: bool = False
    """Whether answers that are rated bad count, too."""
    train: Path
    validation: Path | None


@dataclass(frozen=True, slots=True)
class RowLength:
    tokens: int
    number: int
    """Counted from 1, within its part."""


@dataclass(slots=True)
class RefusedRows:
    """Rows that the chat template rejects for one reason."""

    rows: int = 0
    numbers: list[int] = field(default_factory=list)
    """Row numbers of the first of them."""


@dataclass(slots=True, kw_only=True)
class NumberCounts:
    """Counts of whole numbers, bucketed above a limit."""

    times: Counter[int] = field(default_factory=Counter)
    """Count by number; if bucketed, numbers above 8,192 by the end of their bucket."""
    sums: Counter[int] = field(default_factory=Counter)
    """Sum of the bucketed numbers, by the end of their bucket."""
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
        """Tell whether counts above this number are exact."""
        return not self.is_gathered or at <= EXACT_UP_TO or at % BUCKET_SIZE == 0

    def count_above(self, at: int) -> int:
        """Count the numbers above `at`, or above the nearest lower number with an exact count."""
        threshold = self._nearest_known(at)
        return sum(times for number, times in self.times.items() if number > threshold)

    def sum_above(self, at: int) -> int:
        """Sum up the excess over `at`, or over the nearest lower number with an exact count."""
        threshold = self._nearest_known(at)
        return sum(
            self.sums.get(number, number * times) - threshold * times
            for number, times in self.times.items()
            if number > threshold
        )

    def _nearest_known(self, at: int) -> int:
        return at if self.is_exact_at(at) else at // BUCKET_SIZE * BUCKET_SIZE

    def _bucket(self) -> None:
        self.is_gathered = True
        large = {number: times for number, times in self.times.items() if number > EXACT_UP_TO}
        for number in large:
            del self.times[number]
        for number, times in large.items():
            self.add(number, times)


@dataclass(slots=True, kw_only=True)
class PartStats:
    """Statistics of one part of a dataset; small however many rows there are."""

    rows: int = 0
    """Rows that could be tokenised."""
    pairs: int = 0
    """Of those, pairs of answers of which both were counted."""
    tokens: int = 0
    """With both answers of a pair, and the prompt before each."""
    learnt: int = 0
    most_learnt: int = 0
    """The most trained tokens in one row or answer; 0 in statistics from before it was counted."""
    roles: Counter[str] = field(default_factory=Counter)
    """Tokens by role; `text` for rows without turns, `template` for the chat template's own."""
    learnt_roles: Counter[str] = field(default_factory=Counter)
    """Of those, the tokens trained on."""
    lengths: NumberCounts = field(default_factory=NumberCounts)
    """Rows by length in tokens; one of several texts by that of its longest."""
    shorter: NumberCounts = field(default_factory=NumberCounts)
    """The other texts of rows of several, by length: of pairs of answers, the shorter one."""
    needs: NumberCounts = field(default_factory=NumberCounts)
    """Rows by the smallest max length that leaves something to train on: of a pair, the one at
    which both answers have started and differ."""
    edges: NumberCounts = field(default_factory=NumberCounts)
    """Ends of spans of trained tokens, minus their starts, as token positions from 1 (a start is
    the position before). The sum by which they exceed a cut is the number of trained tokens behind
    it."""
    unlearnt: int = 0
    """Rows with nothing to train on, whatever the max length."""
    left_out: int = 0
    """Rows whose answer was rated bad."""
    refused: dict[str, RefusedRows] = field(default_factory=dict)
    """By reason."""
    longest: list[RowLength] = field(default_factory=list)
    shortest: list[RowLength] = field(default_factory=list)

    def truncated_tokens(self, at: int) -> int:
        """Return how many tokens a max length of `at` truncates."""
        return self.lengths.sum_above(at) + self.shorter.sum_above(at)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStats:
    train: PartStats
    validation: PartStats | None = None
    """None if each run holds out a share of the rows."""

    @property
    def parts(self) -> dict[str, PartStats]:
        found = {"train": self.train, "validation": self.validation}
        return {name: part for name, part in found.items() if part}


TOKEN_STATS_ADAPTER = TypeAdapter(TokenStats)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """What is lost by truncating examples to a max length."""

    at: int
    total_rows: int
    """Number of rows."""
    rows: int
    """Rows that are longer."""
    tokens: int
    """Tokens truncated."""
    learnt: int
    """Of those, the tokens that would have been trained on."""
    emptied: int
    """Rows with nothing left to train on."""
    is_exact: bool
    """If not, figures may be those for the multiple of 1,024 below."""
    has_pairs: bool = False
    """Whether the rows are pairs of answers that are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramBar:
    """Rows of similar length."""

    first: int
    last: int
    rows: int
    cut: int
    """How many of them are truncated."""


def measure_truncation(parts: Sequence[PartStats], at: int) -> Truncation:
    """Return what a max sequence length of `at` tokens would truncate."""
    return Truncation(
        at=at,
        total_rows=sum(part.rows for part in parts),
        rows=sum(part.lengths.count_above(at) for part in parts),
        tokens=sum(part.truncated_tokens(at) for part in parts),
        learnt=sum(part.edges.sum_above(at) for part in parts),
        emptied=sum(part.needs.count_above(at) for part in parts),
        is_exact=all(
            spread.is_exact_at(at)
            for part in parts
            for spread in (part.lengths, part.shorter, part.needs, part.edges)
        ),
        has_pairs=any(part.pairs for part in parts),
    )


def length_quantile(part: PartStats, share: float) -> int:
    """Return the length that this share of the rows does not exceed."""
    target, counted = math.ceil(share * part.rows), 0
    for length, rows in sorted(part.lengths.times.items()):
        counted += rows
        if counted >= target:
            return min(length, part.longest[0].tokens)
    return 0


def build_bars(parts: Sequence[PartStats], at: int) -> list[list[HistogramBar]]:
    """Build a histogram of lengths per part, with four bars per doubling.

    All parts have the same bars, so that they can be shown side by side.
    """
    ends = list(_bar_ends())
    bars_by_part = [_count_bars(part, ends, at) for part in parts]
    places = [place for counts, _ in bars_by_part for place in counts]
    if not places:
        return [[] for _ in parts]
    return [
        [
            HistogramBar(
                first=ends[i - 1] + 1 if i else 1, last=ends[i], rows=counts[i], cut=cut[i]
            )
            for i in range(min(places), max(places) + 1)
        ]
        for counts, cut in bars_by_part
    ]


def _count_bars(part: PartStats, ends: list[int], at: int) -> tuple[Counter[int], Counter[int]]:
    counts, cut = Counter[int](), Counter[int]()
    for length, rows in part.lengths.times.items():
        place = min(bisect_left(ends, length), len(ends) - 1)
        counts[place] += rows
        cut[place] += rows if length > at else 0
    return counts, cut


def _bar_ends() -> Iterator[int]:
    """Yield the last length of each bar: 1 to 8, then 10, 12, 14, 16, 20, 24 and so on."""
    yield from range(1, 8)
    size = 8
    while size <= MAX_LENGTH:
        yield from (size, size + size // 4, size + size // 2, size + size * 3 // 4)
        size *= 2
