"""A covering set is small, shows everything, and spreads what it need not show."""

from itertools import product
from typing import Any

from tests.support.covering import covering

GRID = list(product("abcd", "wxyz"))


def test_covering_set_is_minimal() -> None:
    kept = chosen(covering(GRID, lambda case: case))

    assert len(kept) == 4
    assert {one for one, _ in kept} | {other for _, other in kept} == set("abcdwxyz")


def test_case_with_unique_part_is_kept() -> None:
    cases = ["a", "ab", "b", "z"]

    assert chosen(covering(cases, lambda case: case)) == ["ab", "z"]


def test_other_cases_are_not_marked() -> None:
    first, second = covering(["a", "b"], lambda _case: ["same"])

    assert [mark.name for mark in first.marks] == ["smoke"]
    assert not second.marks


def chosen(cases: list[Any]) -> list[Any]:
    return [one.values[0] for one in cases if one.marks]
