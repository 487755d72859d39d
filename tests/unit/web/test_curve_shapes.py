"""Curves as differences from a baseline, or moved apart."""

import pytest

from studio.services.metrics.metrics import Series
from studio.web.compare import curve_shapes
from studio.web.compare.curve_styles import CurveStyle, StyledCurve

X = [1.0, 2.0, 3.0, 4.0]


def one(*values: float | None, n: int = 1) -> StyledCurve:
    style = CurveStyle(id=1, label="a", hue=0, dash=0, n=n)
    return StyledCurve(style, Series(list(values), list(values), list(values)))


def means(curves: list[StyledCurve]) -> list[list[float | None]]:
    return [curve.series.mean for curve in curves]


def test_differences_are_taken_at_matching_steps_and_joined_between_them() -> None:
    baseline, other = one(1.0, None, 3.0, None), one(1.5, 2.5, None, 9.0)

    shaped = curve_shapes.shape_curves(X, [baseline, other], "difference", baseline.series)
    assert means(shaped) == [[0.0, None, 0.0, None], [0.5, 0.5, None, None]]
    assert shaped[1].series.max == shaped[1].series.mean


def test_difference_of_a_mean_keeps_its_range_over_seeds() -> None:
    mean = one(2.0, 2.0, 2.0, 2.0, n=3)
    mean.series.max[0] = 5.0

    (shaped,) = curve_shapes.shape_curves(X, [mean], "difference", one(*(1.0,) * 4).series)
    assert shaped.series.max == [4.0, 1.0, 1.0, 1.0]


def test_offset_moves_each_curve_above_the_one_before() -> None:
    shaped = curve_shapes.shape_curves(X, [one(*X), one(*X)], "offset", None)

    assert [mean[0] for mean in means(shaped)] == [1.0, pytest.approx(1.6)]


def test_missing_baseline_leaves_no_differences() -> None:
    assert means(curve_shapes.shape_curves(X, [one(*X)], "difference", None)) == [[None] * 4]
