"""Every chart that a page draws has a title, the title of its y axis with its unit, and a menu."""

import re

import pytest

from studio import resources

PLOT = re.compile(r'<div class="plot"[^>]*?(?:\{\{.*?\}\}[^>]*?)*>', re.DOTALL)
TEMPLATES = {
    path.relative_to(resources.templates_dir()).as_posix(): path.read_text(encoding="utf-8")
    for path in resources.templates_dir().rglob("*.html")
}
PLOTS = [(name, plot) for name, text in TEMPLATES.items() for plot in PLOT.findall(text)]
DRAWN = [(name, plot) for name, plot in PLOTS if "data-empty" not in plot]


def test_the_list_of_charts_is_known() -> None:
    """A new place that draws curves is seen here, and looked at."""
    assert sorted({name for name, _plot in DRAWN}) == [
        "compare/_controls.html",
        "macros/runs.html",
        "studies/show.html",
        "style/widgets.html",
    ]


@pytest.mark.parametrize(("name", "plot"), DRAWN)
def test_chart_names_itself_and_its_axis(name: str, plot: str) -> None:
    assert "data-title=" in plot, name
    assert "axis_label" in plot.partition('data-y="')[2], name


@pytest.mark.parametrize("name", sorted({name for name, _plot in DRAWN}))
def test_chart_has_a_menu_to_export_and_to_read_as_table(name: str) -> None:
    text = TEMPLATES[name]
    assert "chart_tools(" in text or "call chart(" in text
