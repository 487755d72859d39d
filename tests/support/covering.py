"""Cases for `parametrize`: a covering set that runs on each push, and the others."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

import pytest

Case = TypeVar("Case")


def covering(cases: Sequence[Case], parts: Callable[[Case], Iterable[Hashable]]) -> list[Any]:
    """Mark with `smoke` a few of the cases that show every part at least once."""
    chosen = _covering_numbers(cases, parts)
    return [
        pytest.param(case, marks=pytest.mark.smoke if number in chosen else ())
        for number, case in enumerate(cases)
    ]


def choose(cases: Sequence[Case], parts: Callable[[Case], Iterable[Hashable]]) -> list[Case]:
    """Return a few of the cases that show every part at least once."""
    chosen = _covering_numbers(cases, parts)
    return [case for number, case in enumerate(cases) if number in chosen]


def _covering_numbers(
    cases: Sequence[Case], parts: Callable[[Case], Iterable[Hashable]]
) -> set[int]:
    """Choose cases: the next one shows most new parts; of equals, it is that with the rarest."""
    shown = [tuple(parts(case)) for case in cases]
    counts: Counter[Hashable] = Counter()
    chosen: set[int] = set()

    def gain(number: int) -> tuple[int, int]:
        seen = [counts[part] for part in shown[number]]
        return seen.count(0), -sum(seen)

    while gain(best := max(range(len(cases)), key=gain))[0]:
        chosen.add(best)
        counts.update(shown[best])
    return chosen
