"""What a comparison of two models shows, in a sentence that claims no more than was measured."""

import math
from typing import Literal

from studio.evaluation.evaluation_metric import UNIT_DIGITS, Metric
from studio.evaluation.statistics import MAX_CHANCE, Comparison, Figure
from studio.metrics import format_value, with_minus

Direction = Literal["better", "worse", "changed", "unclear"]

_WHOLE_POINTS = 10
"""Differences of shares of so many points are written without decimals."""


def direction(metric: Metric, comparison: Comparison) -> Direction:
    """Return whether the second model is better, as far as the rows show."""
    if not comparison.is_clear:
        return "unclear"
    if metric.better == "neither":
        return "changed"
    return "better" if (comparison.difference > 0) == (metric.better == "higher") else "worse"


def is_better(metric: Metric, comparison: Comparison) -> bool | None:
    """Return whether the second model is clearly better or clearly worse; None if neither."""
    return {"better": True, "worse": False}.get(direction(metric, comparison))


def verdict(metric: Metric, before: Figure, after: Figure, comparison: Comparison | None) -> str:
    """Return what the rows that both models answered show."""
    if comparison is None:
        return "No row has answers that count from both models, so there is no verdict."
    sentence = _verdict(metric, comparison)
    if max(before.n, after.n) > comparison.n:
        return f"{sentence} {_left_out(comparison.unpaired)}"
    return sentence


def _verdict(metric: Metric, comparison: Comparison) -> str:
    if comparison.n == 1:
        return "One row is too few for a verdict."
    rows = f"{comparison.n:,}"
    first = format_figure(metric, comparison.first)
    second = write(metric, comparison.second)
    if not comparison.is_clear:
        sentence = f"No clear difference on {rows} rows: {first} and {second}."
        return (
            f"{sentence} {_needed(comparison.rows_needed)}" if comparison.rows_needed else sentence
        )
    low, high = sorted((abs(comparison.low), abs(comparison.high)))
    reach = _reach(metric, low, high)
    match direction(metric, comparison):
        case "better":
            return f"Better: {first} → {second} on {rows} rows ({reach})."
        case "worse":
            return f"Worse: {first} → {second} on {rows} rows ({reach})."
        case _:
            return f"Changed: {first} → {second} on {rows} rows ({reach})."


def _needed(rows: int) -> str:
    return f"About {rows:,} rows would do."


def _left_out(rows: int) -> str:
    if rows == 1:
        return "1 row that counts for one model only is left out."
    return f"{rows:,} rows that count for one model only are left out."


def format_figure(metric: Metric, value: float) -> str:
    """Format the value of a metric, without its unit."""
    if metric.unit == "share":
        return format_value(value, "_share")
    if metric.unit == "number":
        return format_value(value, "")
    return with_minus(f"{value:.{UNIT_DIGITS[metric.unit]}f}")


def write(metric: Metric, value: float) -> str:
    """Write the value of a metric with what it is: 58 % exact answers."""
    return metric.phrase.replace("{value}", format_figure(metric, value))


def _reach(metric: Metric, low: float, high: float) -> str:
    if metric.unit == "share":
        return f"by {_points(low)} to {_points(high)} points"
    least, most = format_figure(metric, low), format_figure(metric, high)
    return f"by {least} to {most}"


def _points(share: float) -> str:
    points = 100 * share
    return f"{points:.0f}" if points >= _WHOLE_POINTS else f"{points:.1f}"


def count_looks(looks: int, kind: Literal["metrics", "checkpoints"] = "metrics") -> str:
    """Return what it means that several values were looked at; empty if it was one.

    Of twenty comparisons of equal models, one looks clear by chance.
    """
    if looks < 2:  # noqa: PLR2004 -- one look needs no caution
        return ""
    chance = math.floor(MAX_CHANCE * looks + 1 / 2)
    if chance > 1 and kind == "metrics":
        return f"Of {looks:,} metrics looked at, {chance:,} such differences may be chance."
    if chance > 1:
        return f"Of {looks:,} checkpoints looked at, {chance:,} such differences may be chance."
    if kind == "metrics":
        return f"Of {looks:,} metrics looked at, one such difference may be chance."
    return f"Of {looks:,} checkpoints looked at, one such difference may be chance."
