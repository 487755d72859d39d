"""Curves as pictures."""

import math
import re

import pytest

from studio.services.metrics.metrics import Series
from studio.web.compare import comparison_export, curve_shapes
from studio.web.compare.comparison_export import ChartOptions
from studio.web.compare.curve_styles import CurveStyle, StyledCurve

X = [1.0, 2.0, 3.0, 4.0]


def tags(drawn: str) -> list[str]:
    return re.findall(r"<(\w+)", drawn)


def one(*values: float | None, label: str = "a", **more: int) -> StyledCurve:
    broken = [place for place, value in zip(X, values, strict=True) if value is None]
    line = CurveStyle(id=1, label=label, hue=0, dash=more.get("dash", 0), n=more.get("n", 1))
    return StyledCurve(line, Series(list(values), list(values), list(values), broken))


@pytest.mark.parametrize("look", [{}, {"is_log": True, "is_x_log": True}, {"is_clipped": True}])
@pytest.mark.parametrize("values", [(1.0, 2.0, 3.0, 4.0), (5.0,) * 4, (-1.0, None, 0.0, 2.0)])
def test_any_curve_renders_valid_svg(
    values: tuple[float | None, ...], look: dict[str, bool]
) -> None:
    options = ChartOptions(title="t", x_axis="step", **look)  # type: ignore[arg-type] # switches only
    drawn = comparison_export.render_svg(X, [one(*values)], options)

    assert (tags(drawn)[0], tags(drawn).count("path") > 0) == ("svg", True)
    assert "nan" not in drawn


def test_non_finite_points_are_marked() -> None:
    drawn = comparison_export.render_svg(
        X, [one(1.0, None, None, 2.0)], ChartOptions(title="t", x_axis="step")
    )

    assert drawn.count("not finite") == 2


def test_html_in_names_is_escaped() -> None:
    drawn = comparison_export.render_svg(
        X, [one(*X, label="<script>")], ChartOptions(title="<b>", x_axis="step")
    )

    assert "<script>" not in drawn
    assert "<b>" not in drawn


def test_chart_without_data_is_empty_svg() -> None:
    assert tags(comparison_export.render_svg([], [], ChartOptions(title="t", x_axis="step")))[
        :2
    ] == [
        "svg",
        "title",
    ]


def test_smoothing_is_bias_corrected() -> None:
    assert comparison_export.smooth([2.0, None, 2.0], 0.9) == [
        pytest.approx(2.0),
        None,
        pytest.approx(2.0),
    ]
    assert math.isclose(comparison_export.smooth([0.0, 1.0], 0.5)[1] or 0, 2 / 3)


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
