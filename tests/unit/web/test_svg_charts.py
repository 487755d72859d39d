"""Curves as pictures."""

import math
import re

import pytest

from studio.services.metrics.metrics import Series
from studio.web.compare import svg_chart
from studio.web.compare.chart_readings import MAX_READINGS, take_readings
from studio.web.compare.svg_chart import ChartLine, ChartOptions, ChartSize

X = [1.0, 2.0, 3.0, 4.0]
PLAIN = ChartOptions(title="t", x_axis="step")


def tags(drawn: str) -> list[str]:
    return re.findall(r"<(\w+)", drawn)


def one(
    *values: float | None,
    label: str = "a",
    smoothing: float = 0,
    broken: tuple[float, ...] | None = None,
) -> ChartLine:
    missing = [place for place, value in zip(X, values, strict=False) if value is None]
    places = missing if broken is None else list(broken)
    series = Series(list(values), list(values), list(values), places)
    return ChartLine(series=series, label=label, hue=0, smoothing=smoothing)


def curves(drawn: str) -> list[str]:
    """Return how each curve is joined: a letter for each point, M where it begins again."""
    paths: list[str] = re.findall(
        r'<path class="line-0" d="([^"]*)" stroke="[^"]*" stroke-w', drawn
    )
    # The last path is the legend's.
    return ["".join(re.findall("[A-Z]", path)) for path in paths if "h20" not in path]


@pytest.mark.parametrize("look", [{}, {"is_log": True, "is_x_log": True}, {"is_clipped": True}])
@pytest.mark.parametrize("values", [(1.0, 2.0, 3.0, 4.0), (5.0,) * 4, (-1.0, None, 0.0, 2.0)])
def test_any_curve_renders_valid_svg(
    values: tuple[float | None, ...], look: dict[str, bool]
) -> None:
    options = ChartOptions(title="t", x_axis="step", **look)  # type: ignore[arg-type] # switches only
    drawn = svg_chart.render_svg(X, [one(*values)], options)

    assert (tags(drawn)[0], tags(drawn).count("path") > 0) == ("svg", True)
    assert "nan" not in drawn


def test_non_finite_points_are_marked() -> None:
    drawn = svg_chart.render_svg(X, [one(1.0, None, None, 2.0)], PLAIN)

    assert drawn.count("NaN or infinite") == 2


def test_non_finite_value_interrupts_curve() -> None:
    drawn = svg_chart.render_svg([*X, 5.0], [one(1.0, 2.0, None, 3.0, 4.0)], PLAIN)

    assert curves(drawn) == ["MLML"]


def test_curve_continues_where_only_others_were_logged() -> None:
    drawn = svg_chart.render_svg(X, [one(1.0, None, None, 3.0, broken=())], PLAIN)

    assert curves(drawn) == ["ML"]


def test_value_below_logarithmic_axis_interrupts_curve() -> None:
    options = ChartOptions(title="t", x_axis="step", is_log=True)
    drawn = svg_chart.render_svg([*X, 5.0], [one(1.0, 2.0, 0.0, 3.0, 4.0)], options)

    assert curves(drawn) == ["MLML"]


def test_point_without_neighbours_is_a_dot() -> None:
    drawn = svg_chart.render_svg(X, [one(1.0, None, None, 2.0)], PLAIN)

    assert (curves(drawn), tags(drawn).count("circle")) == ([], 2)


def test_html_in_names_is_escaped() -> None:
    options = ChartOptions(title="<b>", x_axis="step")
    drawn = svg_chart.render_svg(X, [one(*X, label="<script>")], options)

    assert "<script>" not in drawn
    assert "<b>" not in drawn


def test_chart_without_data_is_empty_svg() -> None:
    assert tags(svg_chart.render_svg([], [], PLAIN))[:2] == ["svg", "title"]


def test_smoothing_is_bias_corrected() -> None:
    assert svg_chart.smooth([2.0, None, 2.0], 0.9) == [
        pytest.approx(2.0),
        None,
        pytest.approx(2.0),
    ]
    assert math.isclose(svg_chart.smooth([0.0, 1.0], 0.5)[1] or 0, 2 / 3)


def test_long_title_takes_two_lines_and_is_never_wider_than_the_chart() -> None:
    title = "Validation loss (nats/token): difference from " + "a long name " * 20
    size = ChartSize(width=520, height=300)
    svg = svg_chart.render_svg([], [], ChartOptions(title=title, x_axis="step", size=size))
    lines = re.findall(r'<text x="72" y="\d+" font-size="13">([^<]*)</text>', svg)

    assert lines[0] == "Validation loss (nats/token): difference from a long"
    assert lines[1].endswith("…")
    assert f"<title>{title}</title>" in svg
    assert all(len(line) * 7.5 <= 520 - 72 for line in lines)


def test_place_under_the_pointer_shows_its_values() -> None:
    lines = [one(1.0, 2.0, None, 4.0, label="a"), one(None, None, 0.5, None, label="b")]
    drawn = svg_chart.render_svg(X, lines, PLAIN)

    strip = r'<rect class="reading" x="(.*?)" .*? width="(.*?)" .*?<title>(.*?)<'
    strips = re.findall(strip, drawn, re.DOTALL)
    assert [text for _x, _width, text in strips] == [
        "Step: 1\na: 1",
        "Step: 2\na: 2",
        "Step: 3\nb: 0.5",
        "Step: 4\na: 4",
    ]
    ends = [float(x) + float(width) for x, width, _text in strips]
    assert (float(strips[0][0]), ends[-1]) == (svg_chart.LEFT, PLAIN.right)
    assert ends[:-1] == pytest.approx([float(x) for x, _width, _text in strips[1:]], abs=0.1)


def test_readings_hold_the_newest_value_since_the_one_before() -> None:
    count = 100
    line = Series([float(step) for step in range(count)], [], [], [])
    rare = Series([1.0 if step == 2 else None for step in range(count)], [], [], [])
    found = take_readings(list(range(count)), [line, rare])

    assert len(found) == MAX_READINGS
    assert (found[0].place, found[-1].place) == (0, count - 1)
    assert [reading.values[0] for reading in found] == [reading.place for reading in found]
    assert [reading.place for reading in found if reading.values[1] is not None] == [
        next(reading.place for reading in found if reading.place >= 2)
    ]
