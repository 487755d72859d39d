"""Hashes that come again, against a plain look at all of them."""

import random
from array import array

import pytest

from studio.intake.rows.deduplication import find_common, find_repeats


def plain(hashes: list[int], most: int) -> tuple[int, dict[int, int]]:
    firsts: dict[int, int] = {}
    again: dict[int, int] = {}
    for place, one in enumerate(hashes, 1):
        first = firsts.setdefault(one, place)
        if first != place:
            again[place] = first
    return len(again), dict(list(again.items())[:most])


@pytest.mark.parametrize(
    ("count", "kinds"), [(0, 1), (1, 1), (5, 1), (5000, 4000), (600_000, 10**6)]
)
def test_repeated_hashes_are_returned_with_first_position(count: int, kinds: int) -> None:
    drawn = random.Random(count)  # noqa: S311 -- a test that repeats itself
    hashes = [drawn.randrange(-kinds, kinds) for _ in range(count)]

    assert find_repeats(array("q", hashes), 100) == plain(hashes, 100)


def test_common_hashes_are_returned_with_positions() -> None:
    held, learnt = array("q", [5, -7, 9, 5]), array("q", [1, 5, 5, 9, 2])

    assert find_common(held, learnt, 10) == (3, {1: 2, 3: 4, 4: 2})
    assert find_common(held, learnt, 1) == (3, {1: 2})
    assert find_common(held, array("q"), 10) == (0, {})
