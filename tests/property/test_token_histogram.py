"""Numbers counted and gathered: whatever they are, what lies behind a cut is known."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from studio.intake.quality import length_stats
from studio.intake.quality.length_stats import (
    BUCKET_SIZE,
    EXACT_UP_TO,
    MAX_DISTINCT,
    MAX_LENGTH,
    NumberCounts,
    PartStats,
    RowLength,
)

NUMBERS = st.lists(st.integers(1, 3 * MAX_LENGTH // 2), max_size=50)
CUTS = st.integers(1, MAX_LENGTH)


def spread(numbers: list[int]) -> NumberCounts:
    found = NumberCounts()
    for number in numbers:
        found.add(number)
    return found


def behind(numbers: list[int], at: int) -> tuple[int, int]:
    return sum(one > at for one in numbers), sum(max(0, one - at) for one in numbers)


@given(NUMBERS, CUTS)
def test_small_histogram_is_exact_everywhere(numbers: list[int], at: int) -> None:
    found = spread(numbers)

    assert found.is_exact_at(at)
    assert (found.count_above(at), found.sum_above(at)) == behind(numbers, at)


@given(
    NUMBERS,
    st.one_of(
        st.integers(1, EXACT_UP_TO), CUTS.map(lambda at: -(-at // BUCKET_SIZE) * BUCKET_SIZE)
    ),
)
@settings(max_examples=10)
def test_large_histogram_is_exact_at_bucket_boundaries(numbers: list[int], at: int) -> None:
    every = [*range(1, EXACT_UP_TO, 9), *range(EXACT_UP_TO, 40 * MAX_DISTINCT, 39), *numbers]
    found = spread(every)

    assert (found.is_gathered, found.is_exact_at(at), len(found.times) <= MAX_DISTINCT) == (
        True,
        True,
        True,
    )
    assert (found.count_above(at), found.sum_above(at)) == behind(every, at)


@given(st.lists(st.integers(1, 2 * MAX_LENGTH), min_size=1, max_size=50), CUTS)
def test_histogram_bars_count_every_row_once(numbers: list[int], at: int) -> None:
    part = PartStats(rows=len(numbers), lengths=spread(numbers))
    (bars,) = length_stats.build_bars([part], at)

    assert all(one.last + 1 == two.first for one, two in pairwise(bars))
    assert sum(bar.rows for bar in bars) == len(numbers)
    assert sum(bar.cut for bar in bars) == behind(numbers, at)[0]


@given(st.lists(st.integers(1, MAX_LENGTH), min_size=1, max_size=50), st.floats(0.01, 1))
def test_quantile_is_smallest_length_covering_its_share(numbers: list[int], share: float) -> None:
    longest = [RowLength(tokens=max(numbers), number=1)]
    part = PartStats(rows=len(numbers), lengths=spread(numbers), longest=longest)
    found = length_stats.length_quantile(part, share)

    assert found in numbers
    assert sum(one <= found for one in numbers) >= share * len(numbers) - 1e-9
    assert sum(one < found for one in numbers) < share * len(numbers) + 1e-9
