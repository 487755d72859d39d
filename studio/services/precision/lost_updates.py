"""Add a small update to a weight many times, in each format: what rounding loses."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from studio.recipe.precision import FLOAT_FORMATS, FloatFormat, MatmulDType

UPDATES = 1000
"""How many updates are added."""

MAX_MAGNITUDE = 1e30
"""Of weight and update: larger ones overflow even double precision on the way."""

Round = Callable[[float], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedUpdates:
    """The weight after all updates, for each way to round."""

    name: MatmulDType
    gap: float
    """The distance from the weight to the next number."""
    exact: float
    start: float
    """The weight as stored before the first update."""
    nearest: float
    stochastic: float
    master: float
    """The weight rounded from a float32 copy that all updates were added to."""

    @property
    def format(self) -> FloatFormat:
        return FLOAT_FORMATS[self.name]

    @property
    def is_stuck(self) -> bool:
        return self.nearest == self.start

    def share(self, result: float) -> float:
        """Return the share of the change that arrived, from 0 to 1 for a bar."""
        whole = self.exact - self.start
        if not whole or not math.isfinite(result):
            return 0.0
        return min(1.0, max(0.0, (result - self.start) / whole))


@lru_cache(maxsize=256)
def add_updates(weight: float, update: float) -> tuple[AddedUpdates, ...]:
    """Add an update to a weight, `UPDATES` times, in every format."""
    return tuple(_add_in(name, weight, update) for name in FLOAT_FORMATS)


def round_float(value: float, form: FloatFormat, pick: Round = round) -> float:
    """Round to a format; `pick` chooses between the two multiples of the gap."""
    if not math.isfinite(value):
        return value
    gap = gap_at(value, form)
    rounded = pick(value / gap) * gap
    return rounded if abs(rounded) <= _largest(form) else math.copysign(math.inf, value)


def gap_at(value: float, form: FloatFormat) -> float:
    """Return the distance between numbers of a format at a value."""
    exponent = max(math.frexp(value)[1] - 1, form.min_exponent)
    return math.ldexp(1.0, exponent - form.mantissa)


def _add_in(name: MatmulDType, weight: float, update: float) -> AddedUpdates:
    form = FLOAT_FORMATS[name]
    dice = Random(0)  # noqa: S311 -- a demonstration that gives the same result each time
    master = _add_all(weight, update, FLOAT_FORMATS["float32"], round)
    start = round_float(weight, form)
    return AddedUpdates(
        name=name,
        gap=gap_at(start, form) if math.isfinite(start) else math.inf,
        exact=weight + UPDATES * update,
        start=start,
        nearest=_add_all(weight, update, form, round),
        stochastic=_add_all(weight, update, form, lambda steps: math.floor(steps + dice.random())),
        master=round_float(master, form),
    )


def _add_all(weight: float, update: float, form: FloatFormat, pick: Round) -> float:
    result = round_float(weight, form)
    for _number in range(UPDATES):
        result = round_float(result + update, form, pick)
    return result


def _largest(form: FloatFormat) -> float:
    """Return the largest finite number exactly."""
    last = 1 if form.has_infinity else 2
    whole = 2 - last * 2.0**-form.mantissa
    return math.ldexp(whole, form.min_exponent + 2**form.exponent - (3 if form.has_infinity else 2))
