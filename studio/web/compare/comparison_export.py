"""Export a comparison as a zip: a Markdown file and its charts as SVG, in light colours."""

import io
import math
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from html import escape

from fastapi.responses import Response
from sqlmodel import Session

from studio.db.summaries import SavedComparison as Saved
from studio.methods import METRICS
from studio.services.compare import compare
from studio.services.compare.comparable_metrics import is_noisy
from studio.services.compare.compare import IGNORED_KEYS, Comparison, MetricCell
from studio.services.metrics import metrics
from studio.web.compare import curve_shapes, curve_styles
from studio.web.compare.comparison_url import ComparisonQuery, parse_query, runs_outside_brush
from studio.web.compare.curve_styles import CurveAxis, CurveSet, StyledCurve
from studio.web.i18n import formatting
from studio.web.rendering.render import attachment_response

WIDTH, HEIGHT = 960, 400
LEFT, RIGHT, TOP, BOTTOM = 72, 16, 44, 48
ROW, COLUMNS = 18, 3
COLOURS = (
    *("#0072b2", "#c04d00", "#007a5a", "#a8467f", "#7a6000", "#6a3d9a", "#56616d", "#b3192b"),
)
DASHES = ("", "6 3", "2 2", "8 3 2 3")
TARGET_TICKS = 6
MAX_BANDS = 4
"""With more lines than this, bands would only hide each other."""
OUTLIER_SHARE = 0.02
"""The share of values at each end that a clipped axis leaves out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartOptions:
    """How to draw a chart."""

    title: str
    x_axis: str
    smoothing: float = 0.0
    """Weight of the moving average; 0 draws the values as they are."""
    is_log: bool = False
    is_x_log: bool = False
    is_clipped: bool = False
    span: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Maps values to pixels."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool

    def position(self, value: float) -> float:
        low, high, value = (
            (math.log10(number) for number in (self.low, self.high, value))
            if self.is_log
            else (self.low, self.high, value)
        )
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high

    @property
    def ticks(self) -> list[float]:
        return (
            _log_ticks(self.low, self.high) if self.is_log else _linear_ticks(self.low, self.high)
        )


def render_svg(x: Sequence[float], drawn: Sequence[StyledCurve], look: ChartOptions) -> str:
    """Draw curves, with axes, a legend, and markers where a value was NaN or infinite."""
    rows = math.ceil(len(drawn) / COLUMNS)
    height = HEIGHT + rows * ROW
    x_scale, y_scale = _scales(x, drawn, look)
    plot_area = (LEFT, TOP, WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM)
    clip_box = 'x="{}" y="{}" width="{}" height="{}"'.format(*plot_area)
    body = [
        _svg_header(height, look.title),
        *_axes(x_scale, y_scale, look),
        (
            f'<clipPath id="inside"><rect {clip_box}/></clipPath><g clip-path="url(#inside)" '
            'fill="none">'
        ),
        *(
            element
            for curve in drawn
            for element in _draw_curve(x, curve, (x_scale, y_scale), look, len(drawn))
        ),
        "</g>",
        *(
            _nonfinite_marker(x_scale.position(position))
            for position in _nonfinite_positions(drawn)
            if x_scale.contains(position)
        ),
        *(_legend_entry(curve, position) for position, curve in enumerate(drawn)),
        "</svg>",
    ]
    return "\n".join(body)


def smooth(values: Sequence[float | None], weight: float) -> list[float | None]:
    """Return the bias-corrected exponential moving average; gaps stay gaps."""
    mean = total_weight = 0.0
    smoothed: list[float | None] = []
    for value in values:
        if value is not None:
            mean = mean * weight + (1 - weight) * value
            total_weight = total_weight * weight + (1 - weight)
        smoothed.append(None if value is None else mean / total_weight)
    return smoothed


def _svg_header(height: float, title: str) -> str:
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" '
        f'role="img"><title>{escape(title)}</title>'
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
        f'<text x="{LEFT}" y="24" font-size="15" font-weight="600" fill="#1d2127">'
        f"{escape(title)}</text>"
    )


def _scales(
    x: Sequence[float], curves: Sequence[StyledCurve], options: ChartOptions
) -> tuple[Scale, Scale]:
    visible_x = [position for position in x if position > 0 or not options.is_x_log]
    low, high = options.span or _value_range(visible_x)
    if options.is_x_log:
        low, high = max(low, min(visible_x, default=1)), max(high, low)
    values = sorted(
        value
        for curve in curves
        for position, value in zip(x, curve.series.mean, strict=True)
        if value is not None and low <= position <= high and (value > 0 or not options.is_log)
    )
    if options.is_clipped and values:
        outliers = math.floor(len(values) * OUTLIER_SHARE)
        values = values[outliers : len(values) - outliers]
    bottom, top = _value_range(values)
    if not options.is_log:
        padding = (top - bottom) * 0.05
        bottom, top = bottom - padding, top + padding
    x_scale = _scale(low, high, LEFT, WIDTH - RIGHT, is_log=options.is_x_log)
    return x_scale, _scale(bottom, top, HEIGHT - BOTTOM, TOP, is_log=options.is_log)


def _scale(low: float, high: float, start: float, end: float, *, is_log: bool) -> Scale:
    if high <= low:
        low, high = (low / 2, low * 2) if is_log else (low - 0.5, high + 0.5)
    return Scale(low=low, high=high, start=start, end=end, is_log=is_log)


def _value_range(values: Sequence[float]) -> tuple[float, float]:
    return (min(values), max(values)) if values else (1.0, 2.0)


def _axes(x_scale: Scale, y_scale: Scale, options: ChartOptions) -> Iterator[str]:
    for tick in y_scale.ticks:
        y = y_scale.position(tick)
        yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#e2e4e8"/>'
        yield _text_label(LEFT - 8, y + 4, formatting.number(tick), "end")
    for tick in x_scale.ticks:
        tick_x = x_scale.position(tick)
        yield f'<path d="M{tick_x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#e2e4e8"/>'
        yield _text_label(
            tick_x, HEIGHT - BOTTOM + 16, formatting.axis_value(tick, options.x_axis), "middle"
        )
    yield _text_label(
        (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, formatting.axis_title(options.x_axis), "middle"
    )


def _text_label(x: float, y: float, text: str, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#4b525c">{escape(text)}</text>'
    )


def _draw_curve(
    x: Sequence[float],
    curve: StyledCurve,
    scales: tuple[Scale, Scale],
    options: ChartOptions,
    count: int,
) -> Iterator[str]:
    colour, series = COLOURS[curve.style.hue], curve.series
    if curve.style.n > 1 or count <= MAX_BANDS:
        lower = list(_points(x, series.min, scales))
        upper = list(_points(x, series.max, scales))[::-1]
        yield f'<path d="{_path([*lower, *upper])}Z" fill="{colour}" fill-opacity=".13"/>'
    dash = f' stroke-dasharray="{DASHES[curve.style.dash]}"' if curve.style.dash else ""
    if options.smoothing:
        raw = _path(_points(x, series.mean, scales))
        yield f'<path d="{raw}" stroke="{colour}" stroke-opacity=".3"{dash}/>'
    line = _path(_points(x, smooth(series.mean, options.smoothing), scales))
    yield f'<path d="{line}" stroke="{colour}" stroke-width="1.75"{dash}/>'


def _points(
    x: Sequence[float], values: Sequence[float | None], scales: tuple[Scale, Scale]
) -> Iterator[tuple[float, float]]:
    x_scale, y_scale = scales
    for position, value in zip(x, values, strict=True):
        if value is None or (y_scale.is_log and value <= 0) or (x_scale.is_log and position <= 0):
            continue
        yield x_scale.position(position), y_scale.position(value)


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + ("L".join(f"{x:.1f} {y:.1f}" for x, y in points) or "0 0")


def _nonfinite_positions(curves: Sequence[StyledCurve]) -> list[float]:
    return sorted({position for curve in curves for position in curve.series.non_finite})


def _nonfinite_marker(x: float) -> str:
    shape = f"M{x - 5:.1f} {TOP - 8}h10l-5 9z"
    return f'<path d="{shape}" fill="#b3192b"><title>not finite</title></path>'


def _legend_entry(curve: StyledCurve, index: int) -> str:
    x = LEFT + index % COLUMNS * (WIDTH - LEFT) / COLUMNS
    y = HEIGHT + index // COLUMNS * ROW + 4
    style = curve.style
    dash = f' stroke-dasharray="{DASHES[style.dash]}"' if style.dash else ""
    label = (
        f"{style.label} (mean of {style.n} runs)" if style.n > 1 else f"{style.label} #{style.id}"
    )
    return (
        f'<path d="M{x:.0f} {y - 4}h20" stroke="{COLOURS[style.hue]}" stroke-width="2.5"{dash}/>'
        f'<text x="{x + 26:.0f}" y="{y}" fill="#1d2127">{escape(label[:44])}</text>'
    )


def _linear_ticks(low: float, high: float) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten."""
    raw_step = (high - low) / TARGET_TICKS
    power = 10 ** math.floor(math.log10(raw_step))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= raw_step)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten, with their multiples by 2 and 5 if there are too few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    times = (1, 2, 5) if len(powers) <= TARGET_TICKS // 2 + 1 else (1,)
    ticks = [time * 10.0**power for power in powers for time in times]
    visible_ticks = [tick for tick in ticks if low <= tick <= high]
    return visible_ticks if len(visible_ticks) > 1 else [low, high]


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


def draw_charts(db: Session, view: ComparisonQuery, made: Comparison) -> dict[str, str]:
    """Draw each metric of a view as SVG."""
    keys = metric_keys(db, view, made)
    curve_set = curve_styles.load_curves(db, made.runs, keys, CurveAxis(x=view.x, group=view.group))
    return {key: draw_chart(curve_set, key, view, made) for key in keys}


def draw_chart(found: CurveSet, key: str, view: ComparisonQuery, made: Comparison) -> str:
    """Draw one metric as a view shows it, without the hidden runs."""
    hidden = {*view.hide, *runs_outside_brush(made, view.brush)}
    visible = found.visible_curves(key, curve_styles.without_hidden(found.styles, hidden))
    base_id = found.line_of(made.base.id or 0)
    visible = curve_shapes.shape_curves(
        found.curves.x, visible, view.curves, found.series[key].get(base_id)
    )
    options = ChartOptions(
        title=curve_shapes.shape_title(
            formatting.metric_title(key), view.curves, found.styles[base_id].label
        ),
        x_axis=view.x,
        smoothing=view.smooth if is_noisy(key) else 0,
        is_log=view.y == "log" and not view.curves,
        is_x_log=view.xscale == "log",
        is_clipped=view.clip,
        span=view.x_range,
    )
    return render_svg(found.curves.x, visible, options)


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
