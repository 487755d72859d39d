"""What the client's objects look like in a notebook."""

import math
import re
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from studio.client import notebook
from studio.client.schemas import Curve, Curves, ErrorDetail, File, Page, Run


def make_run(**changes: Any) -> Run:  # noqa: ANN401 -- any field
    fields: dict[str, Any] = dict.fromkeys(Run.model_fields)
    fields |= {"id": 7, "experiment_id": 1, "name": "a < b", "status": "running", "attempt": 1}
    fields |= {"step": 5, "metrics": {"loss": 1.23456789}, "recipe": {}, "resolved": {}}
    fields |= {"precision": {"name": "bf16", "chosen_by": "user", "reason": ""}, "notes": ""}
    return Run.model_validate(fields | {"tags": [], "created_at": datetime.now(UTC)} | changes)


def curve(*values: float | None) -> Curve:
    return Curve(mean=list(values), min=list(values), max=list(values), non_finite=[])


def test_run_shows_how_far_it_is() -> None:
    shown = make_run(total_steps=20, progress=0.25, eta_seconds=12.4)._repr_html_()

    assert "<b>a &lt; b #7: running</b>" in shown
    assert 'value="0.2500"' in shown
    assert "step 5 of 20, 12 s left, loss 1.2346" in shown


def test_failed_run_says_why_and_what_to_do() -> None:
    error = ErrorDetail(code="x", message="It broke <here>.", hint="Mend it.")
    shown = make_run(status="failed", error=error)._repr_html_()

    assert "It broke &lt;here&gt;. Mend it." in shown


def test_list_is_a_table_of_single_values() -> None:
    files = [File(name="<b>.txt", bytes=3), File(name="config.json", bytes=12)]
    shown = Page[File](data=files, has_more=False, next_after=None)._repr_html_()

    cells = re.findall(r"<t[hd] [^>]*>(.*?)</t[hd]>", shown)
    assert cells == ["name", "bytes", "&lt;b&gt;.txt", "3", "config.json", "12"]
    assert Page[File](data=[], has_more=False, next_after=None)._repr_html_()


def test_chart_is_valid_svg_with_a_line_for_each_metric() -> None:
    curves = Curves(
        x=[1, 2, 3],
        series={
            "loss": curve(3.0, math.nan, 1.0),
            "a<b": curve(None, 2, 2),
            "none": curve(*[None] * 3),
        },
    )
    drawn = ET.fromstring(curves._repr_html_())  # noqa: S314 -- our own

    space = "{http://www.w3.org/2000/svg}"
    lines = [one.get("points") or "" for one in drawn if one.tag.endswith("polyline")]
    assert [len(line.split()) for line in lines] == [2, 2]
    texts = [one.text for one in drawn if one.tag.removeprefix(space) == "text"]
    assert texts == ["1", "3", "1", "3", "loss", "a<b"]


@pytest.mark.parametrize("values", [[5.0], [0.0, 0.0], [1e-300, 1e300], [-1e9, 1e9]])
def test_any_values_are_drawn(values: list[float]) -> None:
    drawn = notebook.chart(list(map(float, range(len(values)))), {"loss": values})

    (points,) = re.findall(r'points="([^"]*)"', drawn)
    places = [float(part) for pair in points.split() for part in pair.split(",")]
    assert all(0 <= place <= notebook.WIDTH for place in places)


def test_chart_without_values_says_so() -> None:
    assert notebook.chart([1], {"loss": [None]}) == "<p>No values yet.</p>"
    assert notebook.chart([], {}) == "<p>No values yet.</p>"


def test_outside_a_notebook_each_change_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    show = notebook.find_display()
    for line in ("step 1", "step 1", "step 2"):
        show("<b>html</b>", line)

    assert capsys.readouterr().out == "step 1\nstep 2\n"
