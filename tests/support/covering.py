"""Cases for `parametrize`: a covering set that runs on each push, the others for the matrix."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

import pytest

Case = TypeVar("Case")


def covering(cases: Sequence[Case], parts: Callable[[Case], Iterable[Hashable]]) -> list[Any]:
    """Mark each case with `matrix` whose parts all stand in cases before it."""
    seen: set[Hashable] = set()
    params = []
    for case in cases:
        new = set(parts(case)) - seen
        seen |= new
        params.append(pytest.param(case, marks=() if new else pytest.mark.matrix))
    return params
