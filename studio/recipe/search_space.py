"""The search space of a sweep: a list of values or a range for each setting that varies.

A form takes either as one line of text: `4, 8, 16` is a list, `1e-5 .. 1e-3 log` a range, and
`8 .. 64 step 8` a range with steps.
"""

import math
import random
import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, TypeAdapter, model_validator

from studio.recipe.fields import Section

Scalar = bool | int | float | str | None
Number = int | float

MAX_VALUES = 100
SIGNIFICANT_DIGITS = 3
"""Significant digits of values sampled from a range: more would only look exact."""

_NUMBER = r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_RANGE = re.compile(
    rf"({_NUMBER})\s*(?:\.\.+|…|to)\s*({_NUMBER})(?:\s+(?:(log)|step\s+({_NUMBER})))?",
    re.IGNORECASE,
)


class Values(Section):
    """A list of values."""

    values: Annotated[list[Scalar], Field(min_length=1, max_length=MAX_VALUES)]

    def grid(self) -> Sequence[Scalar]:
        return self.values

    def sample(self, rng: random.Random) -> Scalar:
        return rng.choice(self.values)


class Range(Section):
    """Any number from `low` to `high`, inclusive; whole numbers if both bounds are whole."""

    low: Number
    high: Number
    log: bool = False
    """Whether to sample uniformly in log space."""
    step: Number | None = None
    """Restricts values to whole multiples of it above `low`."""

    @model_validator(mode="after")
    def _check_bounds(self) -> "Range":
        if self.low >= self.high:
            raise ValueError("The first number of a range must be lower than the second.")
        if self.log and self.step is not None:
            raise ValueError("A range can use log or step, not both.")
        if self.log and self.low <= 0:
            raise ValueError("A log range must start above zero.")
        if self.step is not None and self.step <= 0:
            raise ValueError("A step must be greater than zero.")
        return self

    @property
    def is_whole(self) -> bool:
        return all(isinstance(number, int) for number in (self.low, self.high, self.step or 1))

    @property
    def spacing(self) -> Number | None:
        """The distance between points; None for a continuous range."""
        return 1 if self.step is None and self.is_whole and not self.log else self.step

    @property
    def size(self) -> float:
        """The number of points; infinite for a continuous range."""
        if self.is_whole and self.log:
            return self.high - self.low + 1
        return math.inf if self.spacing is None else self._steps + 1

    def grid(self) -> Sequence[Scalar] | None:
        """Return every point in order; None if there are too many to try them all."""
        if self.size > MAX_VALUES or self.spacing is None:
            return None
        return [self._point_at(index) for index in range(self._steps + 1)]

    def sample(self, rng: random.Random) -> Scalar:
        if self.spacing is not None:
            return self._point_at(rng.randint(0, self._steps))
        if not self.log:
            return self.rounded(rng.uniform(self.low, self.high))
        value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        return self.rounded(value)

    def rounded(self, value: float) -> Number:
        """Return the value rounded to a few digits and clamped to the range."""
        rounded_value = round(value) if self.is_whole else float(f"{value:.{SIGNIFICANT_DIGITS}g}")
        return min(max(rounded_value, self.low), self.high)

    @property
    def _steps(self) -> int:
        # Tolerance for rounding errors: in floating point, 0.3 is not three times 0.1.
        return math.floor((self.high - self.low) / (self.spacing or 1) + 1e-9)

    def _point_at(self, index: int) -> Number:
        value = self.low + index * (self.spacing or 1)
        return value if self.is_whole else float(f"{value:.12g}")


Distribution = Values | Range
SearchSpace = dict[str, Distribution]
"""Distributions by the dotted name of the setting."""
SEARCH_SPACE_ADAPTER: TypeAdapter[SearchSpace] = TypeAdapter(SearchSpace)


def parse(text: str) -> Distribution:
    """Parse what a user typed. Values stay text, to be validated by the setting's type.

    Raises:
        ValueError: the range is invalid.

    """
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        words = [word for part in text.split(",") if (word := part.strip())]
        return Values(values=list(dict.fromkeys(words)))
    low, high, log, step = match.groups()
    return Range(
        low=_number(low),
        high=_number(high),
        log=log is not None,
        step=_number(step) if step else None,
    )


def to_text(distribution: Distribution) -> str:
    """Format values or a range so that `parse` reads it back unchanged."""
    if isinstance(distribution, Values):
        return ", ".join(value_text(value) for value in distribution.values)
    suffix = (
        " log"
        if distribution.log
        else f" step {distribution.step!r}"
        if distribution.step is not None
        else ""
    )
    return f"{distribution.low!r} .. {distribution.high!r}{suffix}"


def value_text(value: Scalar) -> str:
    """Format one value the way users type it."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def count_combinations(space: Mapping[str, Distribution]) -> float:
    """Return the number of combinations; infinite if a range is continuous."""
    return math.prod(
        len(distribution.values) if isinstance(distribution, Values) else distribution.size
        for distribution in space.values()
    )


def _number(text: str) -> Number:
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)
