"""Any values, names and scales give a chart that is well-formed XML without NaN."""

from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from studio.services.metrics.metrics import Series
from studio.web.compare import svg_chart
from studio.web.compare.svg_chart import ChartLine, ChartOptions

FINITE = st.floats(allow_nan=False, allow_infinity=False)
# What XML cannot hold at all is no text of a page.
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"))


@given(
    points=st.dictionaries(FINITE, st.none() | FINITE, max_size=12),
    label=TEXT,
    title=TEXT,
    smoothing=st.sampled_from([0.0, 0.6]),
    is_log=st.booleans(),
    is_x_log=st.booleans(),
)
def test_any_curve_is_well_formed_svg(
    points: dict[float, float | None],
    label: str,
    title: str,
    smoothing: float,
    *,
    is_log: bool,
    is_x_log: bool,
) -> None:
    x = sorted(points)
    values = [points[place] for place in x]
    broken = [place for place in x if points[place] is None]
    line = ChartLine(
        series=Series(values, values, values, broken), label=label, hue=7, smoothing=smoothing
    )
    options = ChartOptions(title=title, x_axis="step", is_log=is_log, is_x_log=is_x_log)
    drawn = svg_chart.render_svg(x, [line], options)

    root = ET.fromstring(drawn)  # noqa: S314 -- our own text
    texts = [element.text for element in root.iter() if element.text and element.text.strip()]
    assert texts[0] == title or not title.strip()
    assert not any("nan" in str(value) for item in root.iter() for value in item.attrib.values())
    assert {item.tag.partition("}")[2] for item in root.iter()} <= {
        *("svg", "title", "rect", "text", "path", "clipPath", "g", "circle"),
    }
