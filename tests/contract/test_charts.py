"""Every chart that a page draws has a title, the title of its y axis with its unit, and a menu."""

import re

import pytest

from studio import resources
from studio.methods import METHODS
from studio.metrics import SHARE_ENDINGS, is_share

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


WITHOUT_UNIT = {
    *("learning_rate", "grad_norm", "update_ratio", "loss_scale", "activation_max", "logit_max"),
    *("eval_perplexity", "skipped_steps", "eval_r2", "eval_spearman", "eval_rmse", "eval_mae"),
    *("reward", "eval_reward", "eval_held_out_score", "reward_spread"),
    *("eval_ndcg_at_10", "eval_mrr_at_10"),
}
"""Factors, norms, scores and counts that their title names."""


@pytest.mark.parametrize("method", METHODS)
def test_metrics_on_charts_have_a_unit_or_none_by_nature(method: str) -> None:
    drawn = [spec for spec in METHODS[method].metrics.all if spec.chart != "-"]
    bare = {spec.key for spec in drawn if not spec.unit}
    # The values of these are written with their unit.
    bare = {key for key in bare if not (key.endswith("_bytes") or is_share(key))}
    # Preference losses are of several kinds, each with its own scale.
    losses = {"loss", "eval_loss"} if METHODS[method].objective.key != "eval_loss" else set()

    assert bare <= WITHOUT_UNIT | losses


def test_pages_and_scripts_write_the_same_metrics_as_percentages() -> None:
    script = (resources.static_dir() / "js/i18n/formatting.js").read_text(encoding="utf-8")
    pattern = "/(?:" + "|".join(SHARE_ENDINGS) + ")$/"

    assert pattern in script


DRAWINGS = {
    "datasets/_token_stats.html": "shares of tokens; text beside",
    "datasets/_length_histogram.html": "rows by tokens; axis, unit and table below",
    "macros/hardware.html": "tiles with the unit in their value; curve and load bar",
    "macros/memory.html": "bars of bytes; text beside",
    "macros/precision.html": "the bits of a format; text beside",
    "numbers/_formats.html": "shares of updates; text beside",
    "runs/_magnitudes.html": "numbers by powers of two; axis below",
    "runs/_overview.html": "tiles with the unit in their value",
    "runs/_rollouts.html": "scores of answers; number beside",
    "runs/_run_table.html": "losses in a table; text for readers",
    "runs/_training_card.html": "the loss of a run; value beside",
    "studies/_report.html": "events by step; axis and table below",
    "sweeps/_sweep.html": "results by a setting; both named in its caption",
}
"""What pages draw without a script, and how its values and units can be read."""

SVG = re.compile(r"(?:<dd aria-hidden=\"true\">)?<svg [^>]*?(?:\{\{.*?\}\}[^>]*?)*>", re.DOTALL)
ICONS = re.compile(r"\bclass=\"[^\"]*\b(icon|mark|swatch|dot|key|logo)\b|viewBox=\"0 0 24 24\"")


def drawings(text: str) -> list[str]:
    return [tag for tag in SVG.findall(text) if not ICONS.search(tag)]


def test_the_list_of_drawings_is_known() -> None:
    """A new drawing is seen here: say how its values and units can be read."""
    drawn = {name for name, text in TEMPLATES.items() if drawings(text)}
    assert drawn - {"macros/icons.html", "style/show.html"} == {*DRAWINGS}


@pytest.mark.parametrize("name", sorted(DRAWINGS))
def test_drawing_has_a_name_or_text_beside(name: str) -> None:
    assert all(
        "aria-label=" in tag or 'aria-hidden="true"' in tag for tag in drawings(TEMPLATES[name])
    )


DRAWN_ON_AXES = [
    "datasets/_length_histogram.html",
    "runs/_magnitudes.html",
    "studies/_report.html",
    "sweeps/_sweep.html",
]
"""Drawings with an axis; the others are bars and lines beside the number that they show."""


@pytest.mark.parametrize("name", DRAWN_ON_AXES)
def test_drawing_on_axes_can_be_zoomed_and_exported(name: str) -> None:
    assert "{% call drawing(" in TEMPLATES[name]
    assert "data-width=" in TEMPLATES[name]
    assert "data-tick" in TEMPLATES[name]
