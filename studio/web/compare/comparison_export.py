"""Export a comparison as a zip: a Markdown file and its charts as SVG, in light colours."""

import io
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC

from fastapi.responses import Response
from sqlmodel import Session

from studio.db.summaries import SavedComparison as Saved
from studio.methods import METRICS
from studio.services.compare import compare
from studio.services.compare.comparable_metrics import is_noisy
from studio.services.compare.compare import IGNORED_KEYS, Comparison, MetricCell
from studio.services.metrics import metrics
from studio.web.compare import curve_shapes, curve_styles, svg_chart
from studio.web.compare.comparison_url import ComparisonQuery, parse_query, runs_outside_brush
from studio.web.compare.curve_styles import CurveAxis, CurveSet, StyledCurve
from studio.web.compare.svg_chart import Chart, ChartLine, ChartOptions, ChartSize
from studio.web.i18n import formatting
from studio.web.rendering.render import attachment_response

DEFAULT_METRICS = tuple(
    key for key, spec in METRICS.items() if spec.source != "studio" or spec.is_always_drawn
)
"""The metrics drawn if the view names none."""

NOISE_LABELS = {
    "": "",
    "beyond": "beyond seed noise",
    "within": "within seed noise",
    "seed": "another seed of the same recipe",
    "unknown": "repeats needed to tell from noise",
}

Row = Sequence[str]
FILE_SIZE = ChartSize()


def zip_response(db: Session, saved: Saved) -> Response:
    """Return a saved comparison as a zip."""
    name = f"comparison-{saved.id}"
    content = build_zip(db, parse_query(saved.query), name, saved)
    return attachment_response(content, f"{name}.zip", "application/zip")


def build_zip(db: Session, view: ComparisonQuery, name: str, saved: Saved | None = None) -> bytes:
    """Write the Markdown file and a chart of each metric."""
    comparison = compare.compare(db, view.runs, view.base)
    charts = draw_charts(db, view, comparison)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as folder:
        for key, svg in charts.items():
            folder.writestr(f"{name}/{key.replace('/', '-')}.svg", svg)
        text = to_markdown(comparison, view, charts, saved)
        folder.writestr(f"{name}/{name}.md", text)
    return buffer.getvalue()


def metric_keys(db: Session, view: ComparisonQuery, made: Comparison) -> list[str]:
    """Return the metrics that a view draws: those it names, else the default ones it has."""
    reported = metrics.list_keys(db, [run.id or 0 for run in made.runs])
    if view.m:
        return [key for key in view.m if key in reported]
    return [key for key in DEFAULT_METRICS if key in reported] or sorted(reported)[:1]


def draw_charts(
    db: Session, view: ComparisonQuery, made: Comparison, size: ChartSize = FILE_SIZE
) -> dict[str, str]:
    """Draw each metric of a view as SVG."""
    charts = prepare_charts(db, view, made, size)
    return {key: svg_chart.render_svg(one.x, one.lines, one.options) for key, one in charts.items()}


def prepare_charts(
    db: Session, view: ComparisonQuery, made: Comparison, size: ChartSize
) -> dict[str, Chart]:
    """Return a chart of each metric of a view."""
    keys = metric_keys(db, view, made)
    axis = CurveAxis(x=view.x, group=view.group)
    curve_set = curve_styles.load_curves(db, made.runs, keys, axis, size.buckets)
    return {key: _prepare_chart(curve_set, key, view, made, size) for key in keys}


def _prepare_chart(
    found: CurveSet, key: str, view: ComparisonQuery, made: Comparison, size: ChartSize
) -> Chart:
    """Return the chart of one metric as a view shows it, without the hidden runs."""
    hidden = {*view.hide, *runs_outside_brush(made, view.brush)}
    visible = found.visible_curves(key, curve_styles.without_hidden(found.styles, hidden))
    base_id = found.line_of(made.base.id or 0)
    visible = curve_shapes.shape_curves(
        found.curves.x, visible, view.curves, found.series[key].get(base_id)
    )
    options = ChartOptions(
        title=curve_shapes.shape_title(
            formatting.axis_label(key, unit=made.unit(key)),
            view.curves,
            found.styles[base_id].label,
        ),
        x_axis=view.x,
        y_metric=key,
        name=f"chart-{key.replace('/', '-')}",
        size=size,
        is_log=view.y == "log" and not view.curves,
        is_x_log=view.xscale == "log",
        is_clipped=view.clip,
        span=view.x_range,
    )
    lines = [_chart_line(curve, view.smooth if is_noisy(key) else 0) for curve in visible]
    return Chart(x=found.curves.x, lines=lines, options=options)


def _chart_line(curve: StyledCurve, smoothing: float) -> ChartLine:
    style = curve.style
    runs = f"(mean of {style.n} runs)" if style.n > 1 else f"#{style.id}"
    return ChartLine(
        series=curve.series,
        label=f"{style.label} {runs}",
        hue=style.hue,
        dash=style.dash,
        is_mean=style.n > 1,
        smoothing=smoothing,
    )


def to_markdown(
    made: Comparison, view: ComparisonQuery, drawn: Iterable[str], saved: Saved | None
) -> str:
    """Write a comparison as Markdown that links to its charts."""
    parts = [
        f"# {_escape_cell(saved.name) if saved else 'Comparison'}",
        *([saved.text] if saved and saved.text else []),
        f"URL: `{view.url}`",
        "## Runs",
        _markdown_table(["Run", "Name", "Status", "Precision", "Started"], _run_rows(made)),
        "## Curves",
        *(f"![{formatting.metric_title(key)}]({key.replace('/', '-')}.svg)" for key in drawn),
        "## Final metrics",
        _markdown_table(["Metric", *_headings(made)], _metric_rows(made)),
        "## Settings that differ",
        _markdown_table(["Setting", *_headings(made)], _setting_rows(made, view)),
    ]
    return "\n\n".join(parts) + "\n"


def _run_rows(comparison: Comparison) -> Iterator[Row]:
    for run in comparison.runs:
        started = run.started_at
        start_text = (
            started.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
            if started
            else formatting.NO_VALUE
        )
        suffix = " (baseline)" if run is comparison.base else ""
        yield [f"#{run.id}", run.name + suffix, run.status, run.recipe.precision, start_text]


def _headings(comparison: Comparison) -> list[str]:
    return [f"#{run.id} {comparison.labels[run.id or 0]}" for run in comparison.runs]


def _metric_rows(comparison: Comparison) -> Iterator[Row]:
    for name, cells in comparison.metrics.items():
        yield [formatting.metric_title(name), *(_format_cell(cell, name) for cell in cells)]


def _format_cell(cell: MetricCell, name: str) -> str:
    parts = [formatting.metric_value(cell.value, name)]
    if cell.delta:
        remarks = [word for word in (cell.verdict, NOISE_LABELS[cell.noise]) if word]
        parts.append(f"({', '.join([formatting.change(cell.delta, name), *remarks])})")
    if cell.repeats:
        repeats = cell.repeats
        mean, spread = (
            formatting.metric_value(repeats.mean, name),
            formatting.metric_value(repeats.spread, name),
        )
        parts.append(f"[{mean} ± {spread}, n = {repeats.n}]")
    return " ".join(parts)


def _setting_rows(comparison: Comparison, view: ComparisonQuery) -> Iterator[Row]:
    for difference in comparison.differences:
        if difference.differs and (view.noise or difference.key not in IGNORED_KEYS):
            yield [difference.key, *(formatting.setting(value) for value in difference.values)]


def _markdown_table(head: Row, rows: Iterable[Row]) -> str:
    lines = [f"| {' | '.join(map(_escape_cell, row))} |" for row in rows]
    if not lines:
        return "None."
    return "\n".join(
        [f"| {' | '.join(map(_escape_cell, head))} |", "|---" * len(head) + "|", *lines]
    )


def _escape_cell(text: str) -> str:
    """Escape text so that it cannot end a cell or a line."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
