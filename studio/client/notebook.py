"""How a notebook shows what the client returns: tables, charts, and a run as it trains.

Only HTML and SVG with their own colours, which suit light and dark pages: no script, no package.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

Show = Callable[[str, str], None]
"""Shows HTML in a notebook, or a line of text elsewhere."""

COLOURS = ("#3b7dd8", "#d9822b", "#2f9e6e", "#b0519b", "#c94a4a", "#7a6ff0")
WIDTH, HEIGHT, LEFT, BOTTOM, ROW = 640, 220, 56, 28, 18
_CELL = 'style="text-align:left;padding:2px 12px 2px 0;font-variant-numeric:tabular-nums"'
_LONGEST = 80
"""Letters of a value in a table."""


def table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as HTML."""
    head = "".join(f"<th {_CELL}>{escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(f'<td {_CELL}>{escape(text(value))}</td>' for value in row)}</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def fields(values: Mapping[str, Any]) -> str:
    """Return the single values of an object as a table, one below the other."""
    return table(("", ""), [(name, value) for name, value in values.items() if is_single(value)])


def is_single(value: object) -> bool:
    """Whether a value fits into a cell."""
    return not isinstance(value, Mapping | list | tuple)


def text(value: object) -> str:
    """Return a value as a reader wants it: numbers with five digits, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.5g}"
    shown = str(value)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"


def card(title: str, share: float | None, lines: Iterable[str], values: Mapping[str, Any]) -> str:
    """Return what something does, how far it is, and its newest values."""
    parts = [f"<b>{escape(title)}</b>"]
    if share is not None:
        parts.append(f'<progress max="1" value="{share:.4f}" style="width:240px"></progress>')
    parts += map(escape, lines)
    return "".join(f"<div>{part}</div>" for part in parts) + fields(values)


def chart(x: Sequence[float], series: Mapping[str, Sequence[float | None]]) -> str:
    """Return curves over one axis as SVG; those without any value are left out."""
    points = {name: list(_points(x, values)) for name, values in series.items()}
    points = {name: line for name, line in points.items() if line}
    if not points:
        return "<p>No values yet.</p>"
    xs = [x for line in points.values() for x, _y in line]
    ys = [y for line in points.values() for _x, y in line]
    to_x, to_y = _scale(xs, LEFT, WIDTH - 8), _scale(ys, HEIGHT - BOTTOM, 8)
    lines = "".join(
        f'<polyline fill="none" stroke="{colour}" stroke-width="1.8" points="'
        + " ".join(f"{to_x(x):.1f},{to_y(y):.1f}" for x, y in line)
        + '"/>'
        for colour, line in zip(_colours(), points.values(), strict=False)
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + ROW * len(points)}" width="{WIDTH}" '
        f'font-family="sans-serif" font-size="12" role="img" '
        f'aria-label="{escape(", ".join(points))}">'
        f"{_axes(xs, ys, to_y)}{lines}{_legend(points)}</svg>"
    )


def _points(x: Sequence[float], values: Sequence[float | None]) -> Iterator[tuple[float, float]]:
    for place, value in zip(x, values, strict=True):
        if value is not None and math.isfinite(value):
            yield place, value


def _scale(values: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    low, high = min(values), max(values)
    size = (high - low) or 1.0
    return lambda value: start + (value - low) / size * (end - start)


def _axes(xs: Sequence[float], ys: Sequence[float], to_y: Callable[[float], float]) -> str:
    """Return the smallest and largest value of each axis, with lines across."""
    heights = sorted({min(ys), max(ys)})
    across = "".join(
        f'<path d="M{LEFT} {to_y(y):.1f}H{WIDTH - 8}" stroke="currentColor" opacity=".2"/>'
        f'<text x="{LEFT - 6}" y="{to_y(y) + 4:.1f}" text-anchor="end" fill="currentColor">'
        f"{text(float(y))}</text>"
        for y in heights
    )
    return across + (
        f'<text x="{LEFT}" y="{HEIGHT - 8}" fill="currentColor">{text(float(min(xs)))}</text>'
        f'<text x="{WIDTH - 8}" y="{HEIGHT - 8}" text-anchor="end" fill="currentColor">'
        f"{text(float(max(xs)))}</text>"
    )


def _legend(names: Collection[str]) -> str:
    rows = zip(range(len(names)), _colours(), names, strict=False)
    return "".join(
        f'<path d="M{LEFT} {HEIGHT + ROW * row}h18" stroke="{colour}" stroke-width="3"/>'
        f'<text x="{LEFT + 26}" y="{HEIGHT + ROW * row + 4}" fill="currentColor">'
        f"{escape(name)}</text>"
        for row, colour, name in rows
    )


def _colours() -> Iterator[str]:
    while True:
        yield from COLOURS


def find_display() -> Show:
    """Return what shows a state in place of the last one; without a notebook, a line for each."""
    handle = _display_handle()
    last = ""

    def show(html: str, line: str) -> None:
        nonlocal last
        if handle is not None:
            handle(html)
        elif line != last:
            print(line, flush=True)  # noqa: T201 -- what it is for
        last = line

    return show


def _display_handle() -> Callable[[str], None] | None:
    """Return what updates one output of this notebook; None if this is no notebook."""
    try:
        from IPython import get_ipython  # noqa: PLC0415 -- optional dependency
        from IPython.display import HTML, display  # noqa: PLC0415 -- optional dependency
    except ImportError:
        return None
    if getattr(get_ipython(), "kernel", None) is None:
        return None
    handle = display(HTML(""), display_id=True)
    return lambda html: handle.update(HTML(html))
