"""Curves as differences from a baseline, or moved apart, as curve_shapes.js draws them on pages."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from studio.services.metrics.metrics import Series
from studio.web.compare.comparison_url import CurveShape
from studio.web.compare.curve_styles import StyledCurve
from studio.web.i18n.locale import gettext

SPREAD = 0.4
"""The share of the values' range by which curves are moved apart in all."""

Values = Sequence[float | None]


def shape_curves(
    x: Sequence[float], curves: Sequence[StyledCurve], shape: CurveShape, baseline: Series | None
) -> list[StyledCurve]:
    """Return the curves as a view draws them; without a baseline there are no differences."""
    if shape == "difference":
        base = fill_gaps(x, baseline.mean if baseline else [None] * len(x))
        return [_subtract(curve, base) for curve in curves]
    return _move_apart(curves) if shape == "offset" else list(curves)


def shape_title(title: str, shape: CurveShape, baseline: str) -> str:
    """Return the title of a chart, with what was done to its curves."""
    if shape == "difference":
        template = gettext("%(title)s: difference from %(baseline)s")
        return template % {"title": title, "baseline": baseline}
    if shape == "offset":
        return gettext("%(title)s: curves moved apart, not to scale") % {"title": title}
    return title


def fill_gaps(x: Sequence[float], values: Values) -> list[float | None]:
    """Join known values by straight lines; before the first and after the last stay gaps."""
    filled = list(values)
    known = [(i, value) for i, value in enumerate(values) if value is not None]
    for (start, low), (end, high) in pairwise(known):
        for i in range(start + 1, end):
            filled[i] = low + (high - low) * (x[i] - x[start]) / (x[end] - x[start])
    return filled


def _subtract(curve: StyledCurve, base: Values) -> StyledCurve:
    def minus(values: Values) -> list[float | None]:
        pairs = zip(values, base, strict=True)
        return [None if value is None or of is None else value - of for value, of in pairs]

    series, mean = curve.series, minus(curve.series.mean)
    # The extremes of a bucket may be of different steps in two runs; those over seeds are not.
    low, high = (minus(series.min), minus(series.max)) if curve.style.n > 1 else (mean, mean)
    return replace(curve, series=replace(series, mean=mean, min=low, max=high))


def _move_apart(curves: Sequence[StyledCurve]) -> list[StyledCurve]:
    values = [value for curve in curves for value in curve.series.mean if value is not None]
    gap = SPREAD * (max(values) - min(values)) / len(curves) if values else 0.0
    return [_move(curve, position * gap) for position, curve in enumerate(curves)]


def _move(curve: StyledCurve, up: float) -> StyledCurve:
    def moved(values: Values) -> list[float | None]:
        return [None if value is None else value + up for value in values]

    series = curve.series
    mean, low, high = moved(series.mean), moved(series.min), moved(series.max)
    return replace(curve, series=replace(series, mean=mean, min=low, max=high))
