"""Scatter plots of a sweep: its metric over each setting, in drawing coordinates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from studio.db.sweeps import Sweep
from studio.recipe.search_space import Range, Scalar, value_text
from studio.services.sweeps.trials import Trial
from studio.web.i18n import formatting

WIDTH, HEIGHT = 320, 150
MARGIN = 10
"""Padding, so that no mark is cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    x: float
    y: float
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
    least: str
    most: str
    """The ends of the y axis."""


def build_plots(sweep: Sweep, made: Sequence[Trial], best: Trial | None) -> list[Plot]:
    """Plot each setting that varies; empty with fewer than two results."""
    told = [one for one in made if one.value is not None and one.state != "failed"]
    if len(told) < 2:  # noqa: PLR2004 -- one point shows nothing
        return []
    values = [one.value for one in told if one.value is not None]
    least, most = min(values), max(values)
    found = []
    for name in sweep.space:
        having = [one for one in told if name in one.settings]
        places, ticks = _x_positions(sweep, name, [one.settings[name] for one in having])
        if len(ticks) < 2:  # noqa: PLR2004 -- it does not vary
            continue
        marks = [
            Mark(
                x=x,
                y=_y_position(one.value or 0, least, most),
                kind=_mark_kind(one, best),
                title=_mark_title(one),
            )
            for x, one in zip(places, having, strict=True)
        ]
        ends = {"least": formatting.number(least), "most": formatting.number(most)}
        # Draw the best mark last, on top of the others.
        marks.sort(key=lambda mark: mark.kind == "best")
        is_range = isinstance(sweep.space[name], Range)
        found.append(Plot(name=name, marks=marks, ticks=ticks, is_range=is_range, **ends))
    return found


def _x_positions(
    sweep: Sweep, name: str, values: Sequence[Scalar]
) -> tuple[list[float], list[str]]:
    space = sweep.space[name]
    room = WIDTH - 2 * MARGIN
    if not isinstance(space, Range):
        # Listed values get columns of equal width.
        columns = {value_text(one): place for place, one in enumerate(space.values)}
        wide = room / len(columns)
        at = {word: round(MARGIN + (place + 0.5) * wide, 1) for word, place in columns.items()}
        return [at[value_text(one)] for one in values], list(at)
    scale = math.log if space.log else float
    low, high = scale(space.low), scale(space.high)

    def across(value: float) -> float:
        return round(MARGIN + room * (scale(value) - low) / (high - low), 1)

    middle = math.sqrt(space.low * space.high) if space.log else (space.low + space.high) / 2
    ends = (space.low, space.rounded(middle), space.high)
    places = [across(one) for one in values if isinstance(one, int | float)]
    return places, [formatting.setting(one) for one in ends]


def _y_position(value: float, least: float, most: float) -> float:
    share = (value - least) / (most - least) if most > least else 0.5
    return round(HEIGHT - MARGIN - share * (HEIGHT - 2 * MARGIN), 1)


def _mark_kind(one: Trial, best: Trial | None) -> str:
    return "best" if best is not None and one.number == best.number else one.state


def _mark_title(one: Trial) -> str:
    settings = ", ".join(f"{name}: {value_text(value)}" for name, value in one.settings.items())
    return f"Run {one.run.id}: {formatting.number(one.value)} ({settings})"
