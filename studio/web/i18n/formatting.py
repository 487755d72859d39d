"""How numbers, sizes, times and metrics are written on a page: one way each."""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from studio.services.tasks import tasks
from studio.web.i18n import number_i18n
from studio.web.i18n.locale import gettext
from studio.web.i18n.translation import translate

METRIC_TITLES: dict[str, str] = {
    "loss": "Training loss",
    "eval_loss": "Validation loss",
    "best_eval_loss": "Best validation loss",
    "mean_token_accuracy": "Token accuracy",
    "eval_mean_token_accuracy": "Validation token accuracy",
    "grad_norm": "Gradient norm",
    "learning_rate": "Learning rate",
    "tokens_per_second": "Tokens per second",
    "tokens": "Tokens",
    "step_seconds": "Seconds per step",
    "train_seconds": "Training time",
    "peak_memory_bytes": "Peak memory",
    "loss_scale": "Loss scale",
    "skipped_steps": "Skipped steps",
    "rating": "Rating, 1 to 5",
    "nonfinite_losses": "Losses that are no number",
    "nonfinite_grads": "Gradients that are no number",
    "grad_underflow_share": "Gradients rounded to zero",
    "update_ratio": "Size of an update",
    "lost_update_share": "Updates lost to rounding",
    "activation_max": "Largest activation",
    "logit_max": "Largest score of a token",
    "rest": "Weights beside quantised layers",
    "weight_bytes": "Memory of the weights",
    "weights": "Weights",
    "changed_weights": "Weights changed",
    "kept_weights": "Weights kept in float32",
    "overflowed_weights": "Became infinite",
    "underflowed_weights": "Became zero",
    "max_relative_change": "Largest relative change",
    "mean_relative_change": "Mean relative change",
    "loss_before": "Loss as trained",
    "loss_after": "Loss as exported",
    "perplexity_before": "Perplexity before",
    "perplexity_after": "Perplexity after",
    "validation_tokens": "Tokens measured",
}

AXIS_TITLES: dict[str, str] = {
    "step": "Step",
    "relative_step": "Relative step",
    "epoch": "Epoch",
    "tokens": "Tokens",
    "seconds": "Time since the start",
    "wall": "Time of day",
}
"""What curves are drawn along."""

MEMORY_PART_TITLES: dict[str, str] = {
    "weights": "Weights",
    "adapter": "Adapter",
    "optimizer": "Optimizer",
    "compensation": "What rounding cuts off",
    "gradients": "Gradients",
    "copies": "Narrow copies of weights",
    "activations": "Activations",
    "scores": "Scoring the answers",
    "scratch": "Update",
    "holes": "Allocator overhead",
    "examples": "Examples",
    "runtime": "Trainer",
}
"""What holds memory in a step."""

MEMORY_MEASURES: dict[str, str] = {
    "allocated": "memory torch has allocated on the GPU",
    "own": "memory of its own that the training process held, less what it held before it loaded "
    "the model",
    "resident": "memory of its own that the training process held and weights that it read from "
    "their file, less what it held before it loaded the model",
    "above_start": "resident memory of the training process, less what it held before it loaded "
    "the model",
    "whole": "resident memory of the whole training process, libraries included",
}
"""How the most memory held while training was measured."""

_SUPERSCRIPTS = str.maketrans(
    "-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"
)

NO_VALUE = "\N{EN DASH}"
"""Written where there is no value: it must not look like zero."""

NO_BREAK = "\N{NO-BREAK SPACE}"

_NEXT_UNIT_FROM = 999.5
"""Three significant digits write this as 1000 of a unit: it is one of the next."""

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_UNITS = (
    (_DAY, "day", _HOUR, "hour"),
    (_HOUR, "hour", _MINUTE, "minute"),
    (_MINUTE, "minute", 1, "second"),
)


def metric_title(name: str) -> str:
    """Return a metric's name in words."""
    return gettext(METRIC_TITLES.get(name, name.replace("_", " ").capitalize()))


def axis_title(name: str) -> str:
    """Return the name of what curves are drawn along; any metric may be."""
    return gettext(AXIS_TITLES[name]) if name in AXIS_TITLES else metric_title(name)


def axis_value(value: float, name: str) -> str:
    """Write a place on an axis."""
    if name == "wall":
        return number_i18n.format_day_and_time(datetime.fromtimestamp(value, UTC))
    return duration(value) if name == "seconds" and value >= 0 else number(value)


def metric_value(value: float | None, name: str) -> str:
    """Write a metric's value with the unit its name says."""
    if value is None:
        return NO_VALUE
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else gettext("infinite")
    if name.endswith("_bytes"):
        return size(value)
    if name.endswith("_share"):
        return number_i18n.format_percent(f"{100 * value:.3g}")
    if name == "train_seconds":
        return duration(value)
    return number(value)


def number(value: float | None) -> str:
    """Write a number with four significant digits, and thousands apart."""
    if value is None:
        return NO_VALUE
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else gettext("infinite")
    if value and abs(value) < 1e-3:  # noqa: PLR2004 -- below this, zeros hide the digits
        return f"{value:.3g}"
    if float(value).is_integer() or abs(value) >= 1e3:  # noqa: PLR2004 -- digits after it mean nothing
        return number_i18n.format_integer(value)
    return f"{value:.4g}"


def count(value: float) -> str:
    """Write how many there are of what comes in millions, with three significant digits."""
    for unit in ("", "K", "M", "B"):
        if abs(value) < _NEXT_UNIT_FROM:
            return f"{value:.3g}{unit and NO_BREAK + unit}"
        value /= 1000
    return f"{value:.3g}{NO_BREAK}T"


def percent(value: float) -> str:
    """Write a share in hundredths, with three significant digits."""
    return number_i18n.format_percent(f"{100 * value:.3g}")


def estimate_error(value: float | None) -> str:
    """Write how far an estimate was off, with its sign."""
    if value is None:
        return NO_VALUE
    sign = "\N{MINUS SIGN}" if value < 0 else "+"
    return sign + number_i18n.format_percent(f"{abs(100 * value):.0f}").replace(" ", NO_BREAK)


def precise(value: float) -> str:
    """Write a number with six significant digits: a small change must be seen."""
    return f"{value:.6g}" if math.isfinite(value) else number(value)


def change(value: float | None, name: str) -> str:
    """Write the difference between two values of a metric, with its sign."""
    if value is None or not value:
        return ""
    sign = "" if math.isnan(value) else "\N{MINUS SIGN}" if value < 0 else "+"
    return sign + metric_value(abs(value), name)


def setting(value: object) -> str:
    """Write a value of a recipe, or of what became of it."""
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
    """Write a very large or very small number as a power of ten, any other plainly."""
    if 1e-4 <= abs(value) < 1e6:  # noqa: PLR2004 -- plain digits read well between these
        return number(float(f"{value:.3g}") if abs(value) < 1 else value)
    digits, _e, power = f"{value:.1e}".partition("e")
    return f"{digits} \N{MULTIPLICATION SIGN} 10{str(int(power)).translate(_SUPERSCRIPTS)}"


def size(value: float) -> str:
    """Write a number of bytes in the unit that reads best."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(value) < _NEXT_UNIT_FROM:  # Decimal units, as disks and networks use.
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def estimated_size(estimate: float, measured: float | None) -> str:
    """Write an estimated size, and by how much it misses what was measured."""
    return f"{size(estimate)}{_error_suffix(estimate, measured)}"


def estimated_duration(estimate: float | None, took: float | None) -> str:
    """Write estimated seconds, and by how much they miss what it took."""
    if not estimate:
        return ""
    return f"{duration(estimate)}{_error_suffix(estimate, took)}"


def _error_suffix(estimate: float, found: float | None) -> str:
    if not found:
        return ""
    return f" ({estimate_error(estimate / found - 1)})"


def memory_measure_sentence(resolved: Mapping[str, Any]) -> str:
    """Say in a sentence what the peak of memory is; runs of old measured the whole process."""
    return translate(
        f"Peak memory: the most {MEMORY_MEASURES[resolved.get('peak_memory', 'whole')]}."
    )


def duration(seconds: float | None) -> str:
    """Write a span of time with the two units that matter."""
    if seconds is None:
        return NO_VALUE
    if seconds < 10:  # noqa: PLR2004 -- tenths are news only in short spans
        return number_i18n.format_duration([(f"{seconds:.1f}", "second")])
    if seconds < _MINUTE:
        return number_i18n.format_duration([(f"{seconds:.0f}", "second")])
    whole, unit, part, smaller = next(row for row in _UNITS if seconds >= row[0])
    rest = f"{seconds % whole // part:.0f}"
    return number_i18n.format_duration([(f"{seconds // whole:.0f}", unit), (rest, smaller)])


def relative_time(at: datetime | None) -> str:
    """Write how long ago something was, or how soon it will be."""
    if at is None:
        return NO_VALUE
    seconds = (datetime.now(UTC) - at).total_seconds()
    for length, unit, _part, _smaller in _UNITS:
        if abs(seconds) >= length:
            much = number_i18n.format_duration([(f"{abs(seconds) // length:.0f}", unit)])
            told = gettext("%(much)s ago") if seconds > 0 else gettext("in %(much)s")
            return told % {"much": much}
    return gettext("just now") if seconds > -1 else gettext("in a moment")


def time_element(at: datetime | str | None) -> str:
    """Write a moment as how far off it is, with the exact time on hover and for machines.

    One that is kept in JSON is text, as in ISO 8601.
    """
    if at is None:
        return NO_VALUE
    if isinstance(at, str):
        at = datetime.fromisoformat(at)
    drawn = Markup('<time datetime="{}" title="{}">{}</time>')
    return drawn.format(at.isoformat(), number_i18n.format_datetime_full(at), relative_time(at))


def sparkline_points(curve: Sequence[float]) -> str:
    """Return the points of an SVG polyline that fits a box of 80 by 20."""
    low, high = min(curve), max(curve)
    scale = 16 / (high - low) if high > low else 0
    across = 78 / max(1, len(curve) - 1)
    return " ".join(
        f"{1 + i * across:.1f},{18 - (value - low) * scale:.1f}" for i, value in enumerate(curve)
    )


FILTERS: dict[str, Callable[..., Any]] = {
    "metric": metric_title,
    "axis": axis_title,
    "measure": metric_value,
    "number": number,
    "size": size,
    "count": count,
    "duration": duration,
    "ago": relative_time,
    "moment": time_element,
    "percent": percent,
    "off": estimate_error,
    "precise": precise,
    "change": change,
    "magnitude": magnitude,
    "setting": setting,
    "inside": number_i18n.within_sentence,
    "sparkline_points": sparkline_points,
    "title_of": tasks.title,
    "about": tasks.describe,
}
