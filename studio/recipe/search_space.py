"""What a sweep tries: for each knob that varies, some values or a range, read, written and drawn.

In a form both are one line of text: `4, 8, 16` are values, `1e-5 .. 1e-3 log` is a range, and
`8 .. 64 step 8` one of whole steps.
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
"""Significant digits of what is drawn from a range: more would only look exact."""

_NUMBER = r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_RANGE = re.compile(
    rf"({_NUMBER})\s*(?:\.\.+|…|to)\s*({_NUMBER})(?:\s+(?:(log)|step\s+({_NUMBER})))?",
    re.IGNORECASE,
)


class Values(Section):
    """Each of some values."""

    values: Annotated[list[Scalar], Field(min_length=1, max_length=MAX_VALUES)]

    def grid(self) -> Sequence[Scalar]:
        return self.values

    def sample(self, dice: random.Random) -> Scalar:
        return dice.choice(self.values)


class Range(Section):
    """Anything from `low` to `high`, both among them. Two whole numbers are a range of such."""

    low: Number
    high: Number
    log: bool = False
    """Whether every power of ten is as likely as any other."""
    step: Number | None = None
    """Only what lies whole steps above `low`."""

    @model_validator(mode="after")
    def _check_bounds(self) -> "Range":
        if self.low >= self.high:
            raise ValueError("A range goes from the lower to the higher number.")
        if self.log and self.step is not None:
            raise ValueError("A range goes by log or by steps, not by both.")
        if self.log and self.low <= 0:
            raise ValueError("A range by log begins above zero.")
        if self.step is not None and self.step <= 0:
            raise ValueError("A step is above zero.")
        return self

    @property
    def is_whole(self) -> bool:
        return all(isinstance(one, int) for one in (self.low, self.high, self.step or 1))

    @property
    def spacing(self) -> Number | None:
        """What parts one point from the next; None where there are points everywhere."""
        return 1 if self.step is None and self.is_whole and not self.log else self.step

    @property
    def size(self) -> float:
        """How many points it has."""
        if self.is_whole and self.log:
            return self.high - self.low + 1
        return math.inf if self.spacing is None else self._steps + 1

    def grid(self) -> Sequence[Scalar] | None:
        """Return every point in order; None where there are too many to try each."""
        if self.size > MAX_VALUES or self.spacing is None:
            return None
        return [self._point_at(place) for place in range(self._steps + 1)]

    def sample(self, dice: random.Random) -> Scalar:
        if self.spacing is not None:
            return self._point_at(dice.randint(0, self._steps))
        if not self.log:
            return self.rounded(dice.uniform(self.low, self.high))
        drawn = math.exp(dice.uniform(math.log(self.low), math.log(self.high)))
        return self.rounded(drawn)

    def rounded(self, value: float) -> Number:
        """Return the number near a value that is tried: of few digits, and never outside."""
        near = round(value) if self.is_whole else float(f"{value:.{SIGNIFICANT_DIGITS}g}")
        return min(max(near, self.low), self.high)

    @property
    def _steps(self) -> int:
        # A hair more, for 0.3 is not quite three times 0.1.
        return math.floor((self.high - self.low) / (self.spacing or 1) + 1e-9)

    def _point_at(self, place: int) -> Number:
        reached = self.low + place * (self.spacing or 1)
        return reached if self.is_whole else float(f"{reached:.12g}")


Distribution = Values | Range
SearchSpace = dict[str, Distribution]
"""By the dotted names of the knobs."""
SEARCH_SPACE_ADAPTER: TypeAdapter[SearchSpace] = TypeAdapter(SearchSpace)


def parse(text: str) -> Distribution:
    """Read what a person typed. Values stay text: what they mean, the knob says.

    Raises:
        ValueError: it is a range that makes no sense.

    """
    found = _RANGE.fullmatch(text.strip())
    if found is None:
        words = [word for part in text.split(",") if (word := part.strip())]
        return Values(values=list(dict.fromkeys(words)))
    low, high, log, step = found.groups()
    return Range(
        low=_number(low),
        high=_number(high),
        log=log is not None,
        step=_number(step) if step else None,
    )


def to_text(several: Distribution) -> str:
    """Write values or a range so that reading it gives the same."""
    if isinstance(several, Values):
        return ", ".join(value_text(value) for value in several.values)
    how = " log" if several.log else f" step {several.step!r}" if several.step is not None else ""
    return f"{several.low!r} .. {several.high!r}{how}"


def value_text(value: Scalar) -> str:
    """Write one value as it is typed."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def count_combinations(space: Mapping[str, Distribution]) -> float:
    """Return how many combinations there are; infinitely many where a range has no steps."""
    return math.prod(
        len(one.values) if isinstance(one, Values) else one.size for one in space.values()
    )


def _number(text: str) -> Number:
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)
