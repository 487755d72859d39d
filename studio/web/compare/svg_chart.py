"""Curves as SVG, for files: with axes, units and a legend, without script or style sheet.

Colours are attributes, so that a chart is readable on its own, in light colours. Elements also
have classes, by which a style sheet around a chart can change them, for example in the dark.
"""

import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from markupsafe import Markup

from studio.services.metrics.metrics import Series
from studio.web.compare.chart_readings import Reading, take_readings
from studio.web.i18n import formatting
from studio.web.i18n.locale import gettext
from studio.web.rendering.colours import DASHES, series_colours

LEFT, RIGHT, TOP, BOTTOM = 72, 16, 44, 48
ROW = 18
LEGEND_WIDTH, LETTER_WIDTH = 224, 6
"""The least width of a legend's entry, and the mean width of a letter."""
INK, SOFT_INK, GRID, BAD = "#1d2127", "#4b525c", "#e2e4e8", "#b3192b"
TARGET_TICKS = 6
LARGEST = 1e290
"""Axes end here: near the limits of a float, margins and ticks would overflow."""
MIN_TICK_DISTANCE = (80, 36)
"""Pixels between labels side by side, and one above the other."""
MAX_BANDS = 4
"""With more lines than this, bands would only hide each other."""
OUTLIER_SHARE = 0.02
"""The share of values at each end that a clipped axis leaves out."""
MAX_LABEL = 32
"""Letters of a curve's name in a tooltip."""
MIN_RANGE = 1e-300
"""Below this, the arithmetic of a scale would underflow."""

TITLE_WIDTHS = (8.5, 7.5)
"""The mean width of a letter in a title of one line, and of two."""

Point = tuple[float, float]
Scales = tuple["Scale", "Scale"]
"""Of the x axis, then of the y axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLine:
    """The curve of one metric, and how to draw it."""

    series: Series
    label: str
    hue: int
    dash: int = 0
    is_mean: bool = False
    """Whether it averages runs: the range between them is then filled, however many lines."""
    smoothing: float = 0.0
    """Weight of the moving average; 0 draws the values as they are."""
    best: Point | None = None
    """The place and value of a point to mark with a star."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSize:
    width: int = 960
    height: int = 400
    """Without the legend."""
    buckets: int = 1000
    """The most points of a curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartOptions:
    """How to draw a chart."""

    title: str
    """What the y axis shows, with its unit."""
    x_axis: str
    y_metric: str = ""
    """The metric whose unit the labels of the y axis have."""
    name: str = "chart"
    """Differs between the charts of one page."""
    size: ChartSize = ChartSize()
    is_log: bool = False
    is_x_log: bool = False
    is_clipped: bool = False
    span: tuple[float, float] | None = None

    @property
    def right(self) -> int:
        return self.size.width - RIGHT

    @property
    def bottom(self) -> int:
        return self.size.height - BOTTOM

    @property
    def columns(self) -> int:
        return max(1, (self.size.width - LEFT) // LEGEND_WIDTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Curves over one x axis, and how to draw them."""

    x: Sequence[float]
    lines: Sequence[ChartLine]
    options: ChartOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Maps values to pixels."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool
    tick_distance: int

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
        if self.is_log:
            return _log_ticks(self.low, self.high)
        room = abs(self.end - self.start) // self.tick_distance
        return _linear_ticks(self.low, self.high, max(2, min(TARGET_TICKS, int(room))))


def to_markup(svg: str) -> Markup:
    """Mark a drawing as HTML: `render_svg` escapes every text in it."""
    return Markup(svg)  # noqa: S704 -- escaped  # nosec B704


def render_svg(x: Sequence[float], lines: Sequence[ChartLine], options: ChartOptions) -> str:
    """Draw curves, with axes and a legend.

    The values of a place are shown while the pointer is above or below it.

    A value that was NaN or infinite interrupts its curve, and has a mark above. A curve without a
    value at a place of the shared x axis continues: it is logged less often than others.
    """
    height = options.size.height + math.ceil(len(lines) / options.columns) * ROW
    scales = _scales(x, lines, options)
    area = f"{options.name}-area"
    box = f'x="{LEFT}" y="{TOP}" width="{options.right - LEFT}" height="{options.bottom - TOP}"'
    body = [
        _svg_header(height, options),
        *_axes(*scales, options),
        f'<clipPath id="{area}"><rect {box}/></clipPath>',
        f'<g clip-path="url(#{area})" fill="none">',
        *(part for line in lines for part in _draw_line(x, line, scales, len(lines))),
        "</g>",
        *(_star(line.best, scales) for line in lines if line.best),
        *(
            _nonfinite_marker(scales[0].position(position))
            for position in _nonfinite_positions(lines)
            if scales[0].contains(position)
        ),
        *(_legend_entry(line, index, options) for index, line in enumerate(lines)),
        *_reading_strips(x, lines, scales, options),
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


def _svg_header(height: float, options: ChartOptions) -> str:
    width = options.size.width
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    title = escape(options.title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" '
        f'role="img"><title>{title}</title>'
        f'<rect class="ground" width="{width}" height="{height}" fill="#fff"/>'
        f'<g class="ink" font-weight="600" fill="{INK}">{"".join(_title_lines(options))}</g>'
    )


def _title_lines(options: ChartOptions) -> Iterator[str]:
    """Write the title in one line, or smaller in two, the second of which may be cut."""
    room = options.right - LEFT
    lines, tops, size = _wrap(options.title, room / TITLE_WIDTHS[0]), [24], 15
    if len(lines) > 1:
        letters = room / TITLE_WIDTHS[1]
        first, *others = _wrap(options.title, letters)
        lines, tops, size = [first, _cut("".join(others), letters)], [17, 34], 13
    for top, line in zip(tops, lines, strict=True):
        yield f'<text x="{LEFT}" y="{top}" font-size="{size}">{escape(line.strip())}</text>'


def _wrap(text: str, room: float) -> list[str]:
    """Break a text where its letters fill a line: at a space, or next to a wide letter."""
    gap, used = 0, 0
    for index, letter in enumerate(text):
        used += _width_of(letter)
        if used > room:
            end = gap or max(1, index)
            return [text[:end], *_wrap(text[end:], room)]
        if letter == " " or _width_of(letter) > 1:
            gap = index + 1
    return [text]


def _cut(text: str, room: float) -> str:
    whole = text
    while text and sum(map(_width_of, text)) > room - (text != whole):
        text = text[:-1]
    return text if text == whole else f"{text}…"


def _width_of(letter: str) -> int:
    """Return how wide a letter is: two for those of East Asian scripts."""
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def _scales(x: Sequence[float], lines: Sequence[ChartLine], options: ChartOptions) -> Scales:
    visible_x = [position for position in x if position > 0 or not options.is_x_log]
    low, high = options.span or _value_range(visible_x)
    if options.is_x_log:
        low, high = max(low, min(visible_x, default=1)), max(high, low)
    values = sorted(
        value
        for line in lines
        for position, value in zip(x, line.series.mean, strict=True)
        if value is not None and low <= position <= high and (value > 0 or not options.is_log)
    )
    if options.is_clipped and values:
        outliers = math.floor(len(values) * OUTLIER_SHARE)
        values = values[outliers : len(values) - outliers]
    bottom, top = _value_range(values)
    if not options.is_log:
        padding = (top - bottom) * 0.05
        bottom, top = bottom - padding, top + padding
    x_scale = _scale(low, high, LEFT, options.right, is_log=options.is_x_log)
    return x_scale, _scale(bottom, top, options.bottom, TOP, is_log=options.is_log)


def _scale(low: float, high: float, start: float, end: float, *, is_log: bool) -> Scale:
    smallest = 1 / LARGEST if is_log else -LARGEST
    low, high = (min(max(limit, smallest), LARGEST) for limit in (low, high))
    if high - low < MIN_RANGE:
        # Relative for large values, which an absolute margin would not change.
        margin = max(0.5, abs(low) * 1e-3)
        low, high = (low / 2, low * 2) if is_log else (low - margin, high + margin)
    # Pixels grow to the right and downwards.
    distance = MIN_TICK_DISTANCE[0 if start < end else 1]
    return Scale(low=low, high=high, start=start, end=end, is_log=is_log, tick_distance=distance)


def _value_range(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return 1.0, 2.0
    low, high = (min(max(limit, -LARGEST), LARGEST) for limit in (min(values), max(values)))
    return low, high


def _axes(x_scale: Scale, y_scale: Scale, options: ChartOptions) -> Iterator[str]:
    for tick in y_scale.ticks:
        y = y_scale.position(tick)
        yield f'<path class="grid-line" d="M{LEFT} {y:.1f}H{options.right}" stroke="{GRID}"/>'
        yield _text_label(LEFT - 8, y + 4, formatting.metric_value(tick, options.y_metric), "end")
    for tick in x_scale.ticks:
        tick_x = x_scale.position(tick)
        yield (
            f'<path class="grid-line" d="M{tick_x:.1f} {TOP}V{options.bottom}" stroke="{GRID}"/>'
        )
        text = formatting.axis_value(tick, options.x_axis)
        yield _text_label(tick_x, options.bottom + 16, text, "middle")
    title = formatting.axis_title(options.x_axis)
    yield _text_label((LEFT + options.right) / 2, options.size.height - 12, title, "middle")


def _text_label(x: float, y: float, text: str, anchor: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="soft-ink" {place} fill="{SOFT_INK}">{escape(text)}</text>'


def _draw_line(x: Sequence[float], line: ChartLine, scales: Scales, count: int) -> Iterator[str]:
    series = line.series
    if line.is_mean or count <= MAX_BANDS:
        yield from _draw_band(x, line, scales)
    dash = f' stroke-dasharray="{DASHES[line.dash]}"' if line.dash else ""
    if line.smoothing:
        yield from _draw_curve(x, series.mean, line, scales, f'stroke-opacity=".3"{dash}')
    smoothed = smooth(series.mean, line.smoothing)
    yield from _draw_curve(x, smoothed, line, scales, f'stroke-width="1.75"{dash}')


def _draw_band(x: Sequence[float], line: ChartLine, scales: Scales) -> Iterator[str]:
    """Fill the range between minimum and maximum."""
    low, high = line.series.min, line.series.max
    fill = f'class="band-{line.hue}" fill="{series_colours()[line.hue]}" fill-opacity=".13"'
    for indices in _unbroken(x, (low, high), line.series.non_finite, scales):
        if len(indices) > 1 and any(low[i] != high[i] for i in indices):
            edges = [*_points(x, low, indices, scales), *_points(x, high, indices[::-1], scales)]
            yield f'<path d="{_path(edges)}Z" {fill}/>'


def _draw_curve(
    x: Sequence[float], values: Sequence[float | None], line: ChartLine, scales: Scales, look: str
) -> Iterator[str]:
    """Draw the parts of a curve; a point without neighbours is a dot."""
    parts = [
        _points(x, values, indices, scales)
        for indices in _unbroken(x, (values,), line.series.non_finite, scales)
    ]
    colour = series_colours()[line.hue]
    if paths := "".join(_path(points) for points in parts if len(points) > 1):
        yield f'<path class="line-{line.hue}" d="{paths}" stroke="{colour}" {look}/>'
    for (left, top), *others in parts:
        if not others:
            place = f'cx="{left:.1f}" cy="{top:.1f}" r="2.5"'
            yield f'<circle class="dot-{line.hue}" {place} fill="{colour}"/>'


def _unbroken(
    x: Sequence[float],
    columns: Sequence[Sequence[float | None]],
    non_finite: Sequence[float],
    scales: Scales,
) -> list[list[int]]:
    """Return the indices of points to join: a value that cannot be drawn parts them."""
    x_scale, y_scale = scales
    broken = set(non_finite)
    parts: list[list[int]] = [[]]
    for index, position in enumerate(x):
        values = [column[index] for column in columns]
        if None in values and position not in broken:
            continue
        if all(_is_drawable(value, y_scale) for value in values) and _is_drawable(
            position, x_scale
        ):
            parts[-1].append(index)
        else:
            parts.append([])
    return [part for part in parts if part]


def _is_drawable(value: float | None, scale: Scale) -> bool:
    return value is not None and (value > 0 or not scale.is_log)


def _points(
    x: Sequence[float], values: Sequence[float | None], indices: Sequence[int], scales: Scales
) -> list[Point]:
    x_scale, y_scale = scales
    return [
        (x_scale.position(x[i]), y_scale.position(value))
        for i in indices
        if (value := values[i]) is not None
    ]


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _nonfinite_positions(lines: Sequence[ChartLine]) -> list[float]:
    return sorted({position for line in lines for position in line.series.non_finite})


def _nonfinite_marker(x: float) -> str:
    title = escape(gettext("NaN or infinite"))
    return (
        f'<path class="broken" d="M{x - 5:.1f} {TOP - 8}h10l-5 9z" fill="{BAD}">'
        f"<title>{title}</title></path>"
    )


def _star(point: Point, scales: Scales) -> str:
    x, y = (scale.position(value) for scale, value in zip(scales, point, strict=True))
    return (
        f'<text class="ink" x="{x:.1f}" y="{y + 5:.1f}" text-anchor="middle" font-size="15" '
        f'fill="{INK}">\N{BLACK STAR}</text>'
    )


def _legend_entry(line: ChartLine, index: int, options: ChartOptions) -> str:
    x = LEFT + index % options.columns * (options.size.width - LEFT) / options.columns
    y = options.size.height + index // options.columns * ROW + 4
    dash = f' stroke-dasharray="{DASHES[line.dash]}"' if line.dash else ""
    room = round(((options.size.width - LEFT) / options.columns - 32) / LETTER_WIDTH)
    label = line.label if len(line.label) <= room else f"{line.label[: room - 1]}…"
    look = f'class="line-{line.hue}" stroke="{series_colours()[line.hue]}" stroke-width="2.5"{dash}'
    return (
        f'<path d="M{x:.0f} {y - 4}h20" {look}/>'
        f'<text class="ink" x="{x + 26:.0f}" y="{y}" fill="{INK}">{escape(label)}</text>'
    )


def _reading_strips(
    x: Sequence[float], lines: Sequence[ChartLine], scales: Scales, options: ChartOptions
) -> Iterator[str]:
    """Cover the plot with transparent strips, each with the values of one place as its tooltip."""
    x_scale, _y_scale = scales
    readings = [
        reading
        for reading in take_readings(x, [line.series for line in lines])
        if x_scale.contains(reading.place) and _is_drawable(reading.place, x_scale)
    ]
    middles = [x_scale.position(reading.place) for reading in readings]
    borders = [(left + right) / 2 for left, right in pairwise(middles)]
    edges = pairwise([LEFT, *borders, options.right])
    for (left, right), reading in zip(edges, readings, strict=False):
        size = f'width="{right - left:.1f}" height="{options.bottom - TOP}"'
        text = escape("\n".join(_reading_lines(reading, lines, options)))
        yield (
            f'<rect class="reading" x="{left:.1f}" y="{TOP}" {size} fill="{INK}" fill-opacity="0">'
            f"<title>{text}</title></rect>"
        )


def _reading_lines(
    reading: Reading, lines: Sequence[ChartLine], options: ChartOptions
) -> Iterator[str]:
    place = formatting.axis_value(reading.place, options.x_axis)
    yield f"{formatting.axis_title(options.x_axis)}{gettext(': ')}{place}"
    for line, value in zip(lines, reading.values, strict=True):
        if value is not None:
            shown = formatting.metric_value(value, options.y_metric)
            yield f"{_cut(line.label, MAX_LABEL)}{gettext(': ')}{shown}"


def _linear_ticks(low: float, high: float, target: int) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten."""
    raw_step = (high - low) / target
    power = 10 ** math.floor(math.log10(raw_step))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= raw_step)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten, with their multiples by 2 and 5 if there are too few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    times = (1, 2, 5) if len(powers) <= TARGET_TICKS // 2 + 1 else (1,)
    ticks = [time * 10.0**power for power in powers for time in times]
    visible_ticks = [tick for tick in ticks if low <= tick <= high]
    return visible_ticks if len(visible_ticks) > 1 else [low, high]
