"""Axes of parallel coordinates and scatter plots: differing settings and final metrics."""

import math
from collections.abc import Sequence
from typing import Any

from studio.services.compare.compare import IGNORED_KEYS, Comparison
from studio.web.i18n import formatting


def build_axes(made: Comparison) -> list[dict[str, Any]]:
    """Return an axis for each setting and each final metric in which the runs differ.

    An axis has a value for each run, or None. Numbers are drawn to scale; other values become a
    list of names.
    """
    settings = [
        _axis(key, key.rpartition(".")[2].replace("_", " "), made.settings[key])
        for key in made.differing
        if key not in IGNORED_KEYS
    ]
    finals = [
        _axis(name, formatting.metric_title(name), [_finite(cell.value) for cell in cells])
        for name, cells in made.metrics.items()
    ]
    return settings + [axis for axis in finals if len({*axis["values"]} - {None}) > 1]


def _axis(key: str, label: str, values: Sequence[Any]) -> dict[str, Any]:
    is_number = all(
        value is None or (isinstance(value, int | float) and not isinstance(value, bool))
        for value in values
    )
    axis_values = list(values) if is_number else [str(value) for value in values]
    return {"key": key, "label": label, "isNumber": is_number, "values": axis_values}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
