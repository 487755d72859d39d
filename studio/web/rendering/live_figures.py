"""The live figures of a run, and their format on pages.

A template shows a figure with `figure(run, name)`. Its element has the name in `data-put`, and
`static/js/live/live_figures.js` updates it with the same text on every event, so a run shows the
same figures in every tab, table and card. A name that is not in `FIGURES` is a metric: its latest
value.
"""

from collections.abc import Callable, Mapping
from math import floor
from typing import Literal

from markupsafe import Markup

from studio.db.tables import Run
from studio.methods import METHODS
from studio.services.estimates import run_progress
from studio.web.i18n import formatting
from studio.web.i18n.locale import gettext
from studio.web.i18n.translation import translate

UNKNOWN_STEPS = "\N{HORIZONTAL ELLIPSIS}"
"""Shown instead of the total number of steps until the trainer knows it."""


def tiles(run: Run, when: Literal["always", "result"]) -> list[str]:
    """Return the metrics that a run's page shows as tiles: always, or once there is a value."""
    return [spec.key for spec in METHODS[run.recipe.method].metrics.all if spec.tile == when]


def figure(run: Run, name: str) -> Markup:
    """Return a figure in an element that the event stream keeps up to date."""
    return Markup('<span data-put="{}">{}</span>').format(name, format_figure(run, name))


def format_figure(run: Run, name: str) -> str:
    """Format the current value of a figure from the database."""
    write = FIGURES.get(name)
    return write(run) if write else formatting.metric_value(run.metrics.get(name), name)


def _total_steps(run: Run) -> str:
    return formatting.number(run.total_steps) if run.total_steps else UNKNOWN_STEPS


def _percent_done(run: Run) -> str:
    # Rounded down: 100 % is shown at the last step only.
    share = run_progress.measure(run).share
    return "" if share is None else formatting.percent(floor(share * 100) / 100)


def _time_left(run: Run) -> str:
    seconds = run_progress.measure(run).eta_seconds
    if seconds is None:
        return ""
    return gettext("%(eta_seconds)s left") % {"eta_seconds": formatting.duration(seconds)}


FIGURES: Mapping[str, Callable[[Run], str]] = {
    "step": lambda run: formatting.number(run.step),
    "total": _total_steps,
    "share": _percent_done,
    "epoch": lambda run: formatting.number(run.epoch),
    "tokens": lambda run: formatting.number(run.tokens),
    "eta": _time_left,
    "duration": lambda run: formatting.duration(run_progress.measure(run).total_seconds),
    "phase": lambda run: translate(run.phase),
}
"""Figures that are not metrics."""
