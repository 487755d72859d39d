"""What varies in a sweep: read as it was written, and never drawn from outside."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studio.recipe.search_space import (
    Distribution,
    Range,
    Values,
    count_combinations,
    parse,
    to_text,
    value_text,
)

WHOLE = st.integers(-1000, 1000)
REAL = st.floats(1e-6, 1e6).map(lambda one: float(f"{one:.6g}"))


@st.composite
def ranges(draw: st.DrawFn) -> Range:
    numbers = draw(st.sampled_from((WHOLE, REAL)))
    low, high = sorted(draw(st.lists(numbers, min_size=2, max_size=2, unique=True)))
    how = draw(st.sampled_from(("", "log", "step")))
    if how == "log" and low > 0:
        return Range(low=low, high=high, log=True)
    step = draw(st.integers(1, 50)) if how == "step" else None
    return Range(low=low, high=high, step=step)


@given(ranges())
def test_range_text_round_trip_is_lossless(one: Range) -> None:
    assert parse(to_text(one)) == one


@given(ranges(), st.integers())
def test_samples_are_within_range(one: Range, seed: int) -> None:
    drawn = one.sample(random.Random(seed))  # noqa: S311 -- no secret

    assert isinstance(drawn, int | float)
    assert one.low <= drawn <= one.high
    assert isinstance(drawn, int) or not one.is_whole


@given(ranges(), st.integers())
def test_samples_of_stepped_range_are_grid_points(one: Range, seed: int) -> None:
    points = one.grid()

    assert points is None or one.sample(random.Random(seed)) in points  # noqa: S311 -- no secret


@given(ranges())
def test_range_size_equals_number_of_grid_points(one: Range) -> None:
    points = one.grid()

    assert points is None or len(points) == len(set(points)) == one.size


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("4, 8,16", Values(values=["4", "8", "16"])),
        ("linear , cosine, linear", Values(values=["linear", "cosine"])),
        ("1e-5..1e-3 log", Range(low=1e-5, high=1e-3, log=True)),
        ("8 to 64 STEP 8", Range(low=8, high=64, step=8)),
        ("0.0…0.5", Range(low=0.0, high=0.5)),
        ("-3..3", Range(low=-3, high=3)),
        ("1.5", Values(values=["1.5"])),
    ],
)
def test_typed_search_space_is_parsed(text: str, meant: Distribution) -> None:
    assert parse(text) == meant


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("5..1", "must be lower than the second"),
        ("0..1 log", "log range must start above zero"),
        ("1..5 step 0", "step must be greater than zero"),
    ],
)
def test_invalid_range_is_rejected(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(text)


def test_range_without_steps_has_infinite_combinations() -> None:
    space: dict[str, Distribution] = {"a": Values(values=[1, 2]), "b": Range(low=0.0, high=1.0)}

    assert (
        count_combinations(space),
        count_combinations({"a": space["a"], "c": Range(low=1, high=3)}),
    ) == (math.inf, 6)


def test_none_and_true_are_written_in_lower_case() -> None:
    assert [value_text(one) for one in (None, True, 4, "cosine")] == ["none", "true", "4", "cosine"]
