"""Draw curves as a self-contained SVG, in the colours of the light theme."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from studio.web.compare.curve_styles import StyledCurve
from studio.web.i18n import formatting

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
            (math.log10(one) for one in (self.low, self.high, value))
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
    across, up = _scales(x, drawn, look)
    inner = (LEFT, TOP, WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM)
    box = 'x="{}" y="{}" width="{}" height="{}"'.format(*inner)
    body = [
        _svg_header(height, look.title),
        *_axes(across, up, look),
        f'<clipPath id="inside"><rect {box}/></clipPath><g clip-path="url(#inside)" fill="none">',
        *(part for one in drawn for part in _draw_curve(x, one, (across, up), look, len(drawn))),
        "</g>",
        *(
            _nonfinite_marker(across.position(place))
            for place in _nonfinite_positions(drawn)
            if across.contains(place)
        ),
        *(_legend_entry(one, place) for place, one in enumerate(drawn)),
        "</svg>",
    ]
    return "\n".join(body)


def smooth(values: Sequence[float | None], weight: float) -> list[float | None]:
    """Return the bias-corrected exponential moving average; gaps stay gaps."""
    mean = mass = 0.0
    made: list[float | None] = []
    for value in values:
        if value is not None:
            mean = mean * weight + (1 - weight) * value
            mass = mass * weight + (1 - weight)
        made.append(None if value is None else mean / mass)
    return made


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
    x: Sequence[float], drawn: Sequence[StyledCurve], look: ChartOptions
) -> tuple[Scale, Scale]:
    shown = [place for place in x if place > 0 or not look.is_x_log]
    low, high = look.span or _value_range(shown)
    if look.is_x_log:
        low, high = max(low, min(shown, default=1)), max(high, low)
    values = sorted(
        value
        for one in drawn
        for place, value in zip(x, one.series.mean, strict=True)
        if value is not None and low <= place <= high and (value > 0 or not look.is_log)
    )
    if look.is_clipped and values:
        cut = math.floor(len(values) * OUTLIER_SHARE)
        values = values[cut : len(values) - cut]
    bottom, top = _value_range(values)
    if not look.is_log:
        room = (top - bottom) * 0.05
        bottom, top = bottom - room, top + room
    across = _scale(low, high, LEFT, WIDTH - RIGHT, is_log=look.is_x_log)
    return across, _scale(bottom, top, HEIGHT - BOTTOM, TOP, is_log=look.is_log)


def _scale(low: float, high: float, start: float, end: float, *, is_log: bool) -> Scale:
    if high <= low:
        low, high = (low / 2, low * 2) if is_log else (low - 0.5, high + 0.5)
    return Scale(low=low, high=high, start=start, end=end, is_log=is_log)


def _value_range(values: Sequence[float]) -> tuple[float, float]:
    return (min(values), max(values)) if values else (1.0, 2.0)


def _axes(across: Scale, up: Scale, look: ChartOptions) -> Iterator[str]:
    for tick in up.ticks:
        y = up.position(tick)
        yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#e2e4e8"/>'
        yield _text_label(LEFT - 8, y + 4, formatting.number(tick), "end")
    for tick in across.ticks:
        at = across.position(tick)
        yield f'<path d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#e2e4e8"/>'
        yield _text_label(
            at, HEIGHT - BOTTOM + 16, formatting.axis_value(tick, look.x_axis), "middle"
        )
    yield _text_label(
        (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, formatting.axis_title(look.x_axis), "middle"
    )


def _text_label(x: float, y: float, said: str, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#4b525c">{escape(said)}</text>'
    )


def _draw_curve(
    x: Sequence[float],
    one: StyledCurve,
    scales: tuple[Scale, Scale],
    look: ChartOptions,
    count: int,
) -> Iterator[str]:
    colour, series = COLOURS[one.style.hue], one.series
    if one.style.n > 1 or count <= MAX_BANDS:
        there = list(_points(x, series.min, scales))
        back = list(_points(x, series.max, scales))[::-1]
        yield f'<path d="{_path([*there, *back])}Z" fill="{colour}" fill-opacity=".13"/>'
    dash = f' stroke-dasharray="{DASHES[one.style.dash]}"' if one.style.dash else ""
    if look.smoothing:
        raw = _path(_points(x, series.mean, scales))
        yield f'<path d="{raw}" stroke="{colour}" stroke-opacity=".3"{dash}/>'
    line = _path(_points(x, smooth(series.mean, look.smoothing), scales))
    yield f'<path d="{line}" stroke="{colour}" stroke-width="1.75"{dash}/>'


def _points(
    x: Sequence[float], values: Sequence[float | None], scales: tuple[Scale, Scale]
) -> Iterator[tuple[float, float]]:
    across, up = scales
    for place, value in zip(x, values, strict=True):
        if value is None or (up.is_log and value <= 0) or (across.is_log and place <= 0):
            continue
        yield across.position(place), up.position(value)


def _path(spots: Iterable[tuple[float, float]]) -> str:
    return "M" + ("L".join(f"{x:.1f} {y:.1f}" for x, y in spots) or "0 0")


def _nonfinite_positions(drawn: Sequence[StyledCurve]) -> list[float]:
    return sorted({place for one in drawn for place in one.series.non_finite})


def _nonfinite_marker(x: float) -> str:
    shape = f"M{x - 5:.1f} {TOP - 8}h10l-5 9z"
    return f'<path d="{shape}" fill="#b3192b"><title>not finite</title></path>'


def _legend_entry(one: StyledCurve, place: int) -> str:
    x = LEFT + place % COLUMNS * (WIDTH - LEFT) / COLUMNS
    y = HEIGHT + place // COLUMNS * ROW + 4
    line = one.style
    dash = f' stroke-dasharray="{DASHES[line.dash]}"' if line.dash else ""
    said = f"{line.label} (mean of {line.n} runs)" if line.n > 1 else f"{line.label} #{line.id}"
    return (
        f'<path d="M{x:.0f} {y - 4}h20" stroke="{COLOURS[line.hue]}" stroke-width="2.5"{dash}/>'
        f'<text x="{x + 26:.0f}" y="{y}" fill="#1d2127">{escape(said[:44])}</text>'
    )


def _linear_ticks(low: float, high: float) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / TARGET_TICKS
    power = 10 ** math.floor(math.log10(rough))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= rough)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten, with their multiples by 2 and 5 if there are too few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    times = (1, 2, 5) if len(powers) <= TARGET_TICKS // 2 + 1 else (1,)
    found = [time * 10.0**power for power in powers for time in times]
    inside = [tick for tick in found if low <= tick <= high]
    return inside if len(inside) > 1 else [low, high]
