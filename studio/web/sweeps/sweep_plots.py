"""The plots of a sweep: its result over each setting that varies."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from studio.db.tables import Sweep
from studio.recipe.search_space import Range, Scalar, value_text
from studio.services.sweeps.sweeps import Trial
from studio.web.i18n import formatting
from studio.web.rendering.colours import run_hue

WIDTH, HEIGHT = 320, 150
MARGIN = 10
"""Padding, so that no mark is cut off."""
COLUMNS = 32
"""How finely the axis of a range is zoomed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    x: float
    y: float
    hue: int
    kind: str
    """best, pruned or done."""
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One plot, `WIDTH` by `HEIGHT`."""

    name: str
    """Dotted name of the setting."""
    marks: Sequence[Mark]
    ticks: Sequence[str]
    """Labels of the x axis, at equal distances."""
    is_range: bool
    """Whether the first and the last tick are at the ends of the axis."""
    y_min: str
    y_max: str
    """The ends of the y axis."""
    edges: Sequence[str]
    """Labels of the edges of equal columns of the x axis; empty if its values are listed."""
    cells: Sequence[tuple[str, Scalar, float]]
    """The run, its setting and its result of each mark."""


def build_plots(sweep: Sweep, made: Sequence[Trial], best: Trial | None) -> list[Plot]:
    """Plot each setting that varies; empty with fewer than two results."""
    with_value = [trial for trial in made if trial.value is not None and trial.state != "failed"]
    if len(with_value) < 2:  # noqa: PLR2004 -- one point shows nothing
        return []
    values = [trial.value for trial in with_value if trial.value is not None]
    low, high = min(values), max(values)
    plots = []
    for name in sweep.space:
        varied = [trial for trial in with_value if name in trial.settings]
        places, ticks = _x_positions(sweep, name, [trial.settings[name] for trial in varied])
        if len(ticks) < 2:  # noqa: PLR2004 -- it does not vary
            continue
        marks = [
            Mark(
                x=x,
                y=_y_position(trial.value or 0, low, high),
                hue=run_hue(trial.run.id),
                kind=_mark_kind(trial, best),
                title=_mark_title(trial),
            )
            for x, trial in zip(places, varied, strict=True)
        ]
        # Draw the best mark last, on top of the others.
        marks.sort(key=lambda mark: mark.kind == "best")
        space = sweep.space[name]
        plots.append(
            Plot(
                name=name,
                marks=marks,
                ticks=ticks,
                is_range=isinstance(space, Range),
                y_min=formatting.number(low),
                y_max=formatting.number(high),
                edges=_edges(space) if isinstance(space, Range) else (),
                cells=[
                    (f"#{trial.run.id}", trial.settings[name], trial.value or 0) for trial in varied
                ],
            )
        )
    return plots


def _edges(space: Range) -> list[str]:
    """Return the values at the edges of equal columns, with the margins as wide as the marks'."""
    scale, unscale = (math.log, math.exp) if space.log else (float, float)
    low, high = scale(space.low), scale(space.high)
    margin = (high - low) * MARGIN / (WIDTH - 2 * MARGIN)
    step = (high - low + 2 * margin) / COLUMNS
    return [formatting.number(unscale(low - margin + step * place)) for place in range(COLUMNS + 1)]


def _x_positions(
    sweep: Sweep, name: str, values: Sequence[Scalar]
) -> tuple[list[float], list[str]]:
    space = sweep.space[name]
    width = WIDTH - 2 * MARGIN
    if not isinstance(space, Range):
        # Listed values get columns of equal width.
        columns = {value_text(item): index for index, item in enumerate(space.values)}
        column_width = width / len(columns)
        column_x = {
            word: round(MARGIN + (index + 0.5) * column_width, 1) for word, index in columns.items()
        }
        return [column_x[value_text(item)] for item in values], list(column_x)
    scale = math.log if space.log else float
    low, high = scale(space.low), scale(space.high)

    def across(value: float) -> float:
        return round(MARGIN + width * (scale(value) - low) / (high - low), 1)

    middle = math.sqrt(space.low * space.high) if space.log else (space.low + space.high) / 2
    ends = (space.low, space.rounded(middle), space.high)
    places = [across(item) for item in values if isinstance(item, int | float)]
    return places, [formatting.setting(item) for item in ends]


def _y_position(value: float, low: float, high: float) -> float:
    share = (value - low) / (high - low) if high > low else 0.5
    return round(HEIGHT - MARGIN - share * (HEIGHT - 2 * MARGIN), 1)


def _mark_kind(trial: Trial, best: Trial | None) -> str:
    return "best" if best is not None and trial.number == best.number else trial.state


def _mark_title(trial: Trial) -> str:
    settings = ", ".join(f"{name}: {value_text(value)}" for name, value in trial.settings.items())
    return f"Run {trial.run.id}: {formatting.number(trial.value)} ({settings})"
