"""Format numbers, sizes, times and metrics for pages."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from studio.evaluation.evaluation_metric import UNIT_DIGITS, Unit
from studio.methods import METRICS
from studio.metrics import is_share, with_minus
from studio.services.tasks import tasks
from studio.web.i18n import number_i18n
from studio.web.i18n.locale import gettext, ngettext
from studio.web.i18n.translation import translate

AXIS_TITLES: dict[str, str] = {
    "step": "Step",
    "relative_step": "Relative step",
    "epoch": "Epoch",
    "tokens": "Tokens",
    "seconds": "Time since the start",
    "wall": "Time of day",
}
"""Titles of the x axes of curves."""

MEMORY_PART_TITLES: dict[str, str] = {
    "weights": "Weights",
    "adapter": "Adapter",
    "teacher": "Teacher",
    "reward_models": "Reward models",
    "optimizer": "Optimizer",
    "compensation": "Rounding compensation",
    "gradients": "Gradients",
    "copies": "16-bit copies of weights",
    "activations": "Activations",
    "scores": "Logits and loss",
    "scratch": "Optimizer step",
    "holes": "Allocator overhead",
    "examples": "Examples",
    "runtime": "Trainer",
}
"""Titles of the parts of memory in a training step."""

MEMORY_MEASURES: dict[str, str] = {
    "allocated": "memory allocated by torch on the GPU",
    "own": "private memory of the training process, minus what it used before loading the model",
    "resident": "private memory of the training process plus weights mapped from their file, "
    "minus what it used before loading the model",
    "above_start": "resident memory of the training process, minus what it used before loading "
    "the model",
    "whole": "resident memory of the whole training process, including libraries",
}
"""How peak memory was measured."""

_CODE = re.compile("`([^`]+)`")

_SUPERSCRIPTS = str.maketrans(
    "-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"
)

NO_VALUE = "\N{EN DASH}"
"""Shown for a missing value: it must not look like zero."""

MINUS = "\N{MINUS SIGN}"

NO_BREAK = "\N{NO-BREAK SPACE}"

_NEXT_UNIT_FROM = 999.5
"""From here on, three significant digits would round to 1000: use the next unit."""

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_UNITS = (
    (_DAY, "day", _HOUR, "hour"),
    (_HOUR, "hour", _MINUTE, "minute"),
    (_MINUTE, "minute", 1, "second"),
)


def metric_title(name: str) -> str:
    """Return the title of a metric."""
    spec = METRICS.get(name)
    return gettext(spec.title) if spec else name.replace("_", " ").capitalize()


def axis_label(name: str, title: str = "", unit: str | None = None) -> str:
    """Return the label of a y axis: the metric or the chart's own title, and the unit.

    `unit` is that of the run's method, where methods differ.
    """
    spec = METRICS.get(name)
    label = gettext(title) if title else metric_title(name)
    if unit is None:
        unit = spec.unit if spec else ""
    return f"{label} ({unit})" if unit else label


def starred_direction(name: str) -> str:
    """Return the better direction of a metric whose best value a chart marks, or nothing.

    Only validations are marked: other values vary from batch to batch, so the best means nothing.
    """
    spec = METRICS.get(name)
    return spec.better if spec and spec.source == "eval" else ""


def axis_title(name: str) -> str:
    """Return the title of an x axis, which may be any metric."""
    return gettext(AXIS_TITLES[name]) if name in AXIS_TITLES else metric_title(name)


def axis_value(value: float, name: str) -> str:
    """Format a position on an x axis."""
    if name == "wall":
        return number_i18n.format_day_and_time(datetime.fromtimestamp(value, UTC))
    return duration(value) if name == "seconds" and value >= 0 else number(value)


def metric_value(value: float | None, name: str) -> str:
    """Format the value of a metric, with the unit that its name implies."""
    if value is None:
        return NO_VALUE
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else gettext("infinite")
    if name.endswith("_bytes"):
        return size(value)
    if is_share(name):
        return number_i18n.format_percent(f"{100 * value:.3g}")
    if name == "train_seconds":
        return duration(value)
    return number(value)


def number(value: float | None) -> str:
    """Format a number with four significant digits and grouped thousands."""
    if value is None:
        return NO_VALUE
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else gettext("infinite")
    if value and abs(value) < 1e-3:  # noqa: PLR2004 -- below this, zeros hide the digits
        return with_minus(f"{value:.3g}")
    if float(value).is_integer() or abs(value) >= 1e3:  # noqa: PLR2004 -- digits after it mean nothing
        return number_i18n.format_integer(value)
    return with_minus(f"{value:.4g}")


def count(value: float) -> str:
    """Format a large count with three significant digits and K, M, B or T."""
    for unit in ("", "K", "M", "B"):
        if abs(value) < _NEXT_UNIT_FROM:
            return f"{value:.3g}{unit and NO_BREAK + unit}"
        value /= 1000
    return f"{value:.3g}{NO_BREAK}T"


def percent(value: float) -> str:
    """Format a share as a percentage with three significant digits."""
    return number_i18n.format_percent(f"{100 * value:.3g}")


def percent_of_any_size(value: float) -> str:
    """Format a share that may be far below one percent."""
    percent = number_i18n.format_percent(magnitude(float(f"{100 * value:.2g}")))
    return percent.replace(" ", NO_BREAK)


def estimate_error(value: float | None) -> str:
    """Format the relative error of an estimate, with its sign."""
    if value is None:
        return NO_VALUE
    sign = MINUS if value < 0 else "+"
    return sign + number_i18n.format_percent(f"{abs(100 * value):.0f}").replace(" ", NO_BREAK)


def precise(value: float) -> str:
    """Format a number with six significant digits, so that small changes are visible."""
    return number_i18n.format_digits(value, 6) if math.isfinite(value) else number(value)


def change(value: float | None, name: str) -> str:
    """Format the difference between two values of a metric, with its sign.

    Two shares differ by percentage points: "+5 %" would read as a part of the first one.
    """
    if value is None or not value:
        return ""
    sign = "" if math.isnan(value) else MINUS if value < 0 else "+"
    if is_share(name) and math.isfinite(value):
        return points(sign, f"{100 * abs(value):.3g}")
    return sign + metric_value(abs(value), name)


def points(sign: str, digits: str) -> str:
    """Format a difference of two percentages."""
    template = ngettext("%(digits)s point", "%(digits)s points", 1 if digits == "1" else 2)
    return sign + template % {"digits": digits}


def evaluated(value: float, unit: Unit) -> str:
    """Format the value of an evaluated metric."""
    if unit == "share":
        return percent(value)
    if unit == "number":
        return number(value)
    return with_minus(f"{value:.{UNIT_DIGITS[unit]}f}")


def evaluated_change(value: float, unit: Unit, *, has_unit: bool = True) -> str:
    """Format the difference between two values of an evaluated metric, with its sign."""
    sign = MINUS if value < 0 else "+" if value else ""
    if unit != "share":
        return sign + evaluated(abs(value), unit)
    digits = f"{100 * abs(value):.3g}"
    return points(sign, digits) if has_unit else sign + digits


def setting(value: object) -> str:
    """Format a requested or actual value of a setting."""
    if value is None:
        return NO_VALUE
    if isinstance(value, bool):
        return gettext("yes") if value else gettext("no")
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(setting, value)) or NO_VALUE
    return str(value)


def magnitude(value: float) -> str:
    """Format a very large or very small number as a power of ten, others as digits."""
    if 1e-4 <= abs(value) < 1e6:  # noqa: PLR2004 -- plain digits read well between these
        return number(float(f"{value:.3g}") if abs(value) < 1 else value)
    digits, _e, power = f"{value:.1e}".partition("e")
    return scientific(digits, int(power))


def prose(text: str) -> Markup:
    """Translate a text into one paragraph, in which what stands in backticks is code."""
    words = " ".join(translate(text).split())
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(words))))  # noqa: S704 -- escaped  # nosec B704


def scientific(digits: str, power: int) -> str:
    """Return digits times a power of ten."""
    times = f"{NO_BREAK}\N{MULTIPLICATION SIGN}{NO_BREAK}"
    return f"{with_minus(digits)}{times}10{superscript(power)}"


def superscript(number: int) -> str:
    return str(number).translate(_SUPERSCRIPTS)


def power_of_two(power: int) -> str:
    return f"2{superscript(power)}"


def size(value: float) -> str:
    """Format a number of bytes in the most readable unit."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(value) < _NEXT_UNIT_FROM:  # Decimal units, as disks and networks use.
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def estimated_size(estimate: float, measured: float | None) -> str:
    """Format an estimated size, with its error if a measurement exists."""
    return f"{size(estimate)}{_error_suffix(estimate, measured)}"


def estimated_duration(estimate: float | None, took: float | None) -> str:
    """Format an estimated duration, with its error if the actual duration is known."""
    if not estimate:
        return ""
    return f"{duration(estimate)}{_error_suffix(estimate, took)}"


def _error_suffix(estimate: float, actual: float | None) -> str:
    if not actual:
        return ""
    return f" ({estimate_error(estimate / actual - 1)})"


def memory_measure_sentence(resolved: Mapping[str, Any]) -> str:
    """Explain how peak memory was measured; early versions measured the whole process."""
    return translate(
        f"Peak memory: maximum {MEMORY_MEASURES[resolved.get('peak_memory', 'whole')]}."
    )


def duration(seconds: float | None) -> str:
    """Format a duration with its two largest units; the smaller one only if it is not zero."""
    if seconds is None:
        return NO_VALUE
    if seconds < 10:  # noqa: PLR2004 -- tenths matter only in short durations
        return number_i18n.format_duration([(f"{seconds:.1f}", "second")])
    if seconds < _MINUTE:
        return number_i18n.format_duration([(f"{seconds:.0f}", "second")])
    unit_seconds, unit, smaller_seconds, smaller = next(row for row in _UNITS if seconds >= row[0])
    parts = [(f"{seconds // unit_seconds:.0f}", unit)]
    if remainder := seconds % unit_seconds // smaller_seconds:
        parts.append((f"{remainder:.0f}", smaller))
    return number_i18n.format_duration(parts)


def relative_time(at: datetime | None) -> str:
    """Format a time relative to now, past or future."""
    if at is None:
        return NO_VALUE
    seconds = (datetime.now(UTC) - at).total_seconds()
    for length, unit, _part, _smaller in _UNITS:
        if abs(seconds) >= length:
            amount = number_i18n.format_duration([(f"{abs(seconds) // length:.0f}", unit)])
            template = gettext("%(much)s ago") if seconds > 0 else gettext("in %(much)s")
            return template % {"much": amount}
    return gettext("just now") if seconds > -1 else gettext("in a moment")


def time_element(at: datetime | str | None) -> str:
    """Return a `<time>` element: the relative time, with the exact time on hover and for machines.

    Times from JSON are ISO 8601 text.
    """
    if at is None:
        return NO_VALUE
    if isinstance(at, str):
        at = datetime.fromisoformat(at)
    element = Markup('<time datetime="{}" title="{}">{}</time>')
    return element.format(at.isoformat(), number_i18n.format_datetime_full(at), relative_time(at))


def sparkline_points(curve: Sequence[float]) -> str:
    """Return the points of an SVG polyline that fits an 80 by 20 box."""
    low, high = min(curve), max(curve)
    scale = 16 / (high - low) if high > low else 0
    across = 78 / max(1, len(curve) - 1)
    return " ".join(
        f"{1 + i * across:.1f},{18 - (value - low) * scale:.1f}" for i, value in enumerate(curve)
    )


FILTERS: dict[str, Callable[..., Any]] = {
    "metric": metric_title,
    "axis": axis_title,
    "axis_label": axis_label,
    "star": starred_direction,
    "measure": metric_value,
    "number": number,
    "size": size,
    "count": count,
    "duration": duration,
    "ago": relative_time,
    "moment": time_element,
    "timestamp": number_i18n.format_datetime_full,
    "percent": percent,
    "evaluated": evaluated,
    "evaluated_change": evaluated_change,
    "percent_of_any_size": percent_of_any_size,
    "off": estimate_error,
    "precise": precise,
    "change": change,
    "magnitude": magnitude,
    "superscript": superscript,
    "power_of_two": power_of_two,
    "setting": setting,
    "prose": prose,
    "inside": number_i18n.within_sentence,
    "sparkline_points": sparkline_points,
    "title_of": tasks.title,
    "about": tasks.describe,
}
