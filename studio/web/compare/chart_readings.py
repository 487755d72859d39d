"""Values to read off curves: a few places of a chart, with the value of each curve there."""

from collections.abc import Sequence
from dataclasses import dataclass

from studio.services.metrics.metrics import Series

MAX_READINGS, MIN_READINGS, MAX_VALUES = 24, 4, 96
"""The more curves, the fewer readings: their values are written into the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    place: float
    """On the x axis."""
    values: tuple[float | None, ...]
    """Of each curve; None if it has none since the reading before."""


def take_readings(x: Sequence[float], curves: Sequence[Series]) -> list[Reading]:
    """Return readings at evenly chosen places that have values, the first and the last included."""
    filled = [at for at in range(len(x)) if any(one.mean[at] is not None for one in curves)]
    most = min(MAX_READINGS, max(MIN_READINGS, MAX_VALUES // max(1, len(curves))))
    count = min(len(filled), most)
    chosen = [filled[round(nth * (len(filled) - 1) / max(1, count - 1))] for nth in range(count)]
    starts = [0, *(at + 1 for at in chosen)]
    return [
        Reading(place=x[at], values=tuple(_newest(one.mean[start : at + 1]) for one in curves))
        for start, at in zip(starts, chosen, strict=False)
    ]


def _newest(values: Sequence[float | None]) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)
