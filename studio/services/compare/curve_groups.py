"""Curve groups: draw runs that differ in the seed only, or share a setting's value, as one line.

A line is the mean of its runs at each place, with a band from the lowest to the highest. Runs log
at different places, so values are interpolated, but never extrapolated.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from studio.db.tables import Run
from studio.recipe.dotted_keys import flatten
from studio.services.compare.seed_noise import SEEDS, recipe_key
from studio.services.metrics.metrics import Curves, Series

BY_SEED = "seed"
"""Group runs that differ in the seed only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveGroup:
    """Runs that are drawn as one line."""

    label: str
    runs: Sequence[int]


def group_runs(runs: Sequence[Run], key: str) -> list[CurveGroup]:
    """Group runs by a setting (dotted key), or by everything except the seed."""
    groups: dict[object, list[Run]] = defaultdict(list)
    for run in runs:
        groups[recipe_key(run) if key == BY_SEED else _setting_value(run, key)].append(run)
    if key == BY_SEED:
        names = _distinct_labels([members[0] for members in groups.values()])
    else:
        names = [f"{key.rpartition('.')[2]} = {value}" for value in groups]
    return [
        CurveGroup(label=name, runs=[run.id or 0 for run in members])
        for name, members in zip(names, groups.values(), strict=True)
    ]


def merge_curves(
    curves: Curves, groups: Sequence[CurveGroup], keys: Sequence[str]
) -> dict[str, list[Series]]:
    """Return the groups' lines for each metric, in the order of the groups."""
    return {
        key: [
            _mean_line(
                [line for run in group.runs if (line := curves.series.get((run, key)))], curves.x
            )
            for group in groups
        ]
        for key in keys
    }


def _setting_value(run: Run, key: str) -> str:
    value = flatten(run.recipe.model_dump()).get(key)
    return "none" if value is None else str(value)


def _distinct_labels(first: Sequence[Run]) -> list[str]:
    """Label recipes by the settings in which they differ; if none do, by the runs' names."""
    flat = [flatten(run.recipe.model_dump()) for run in first]
    keys = [
        key
        for key in dict.fromkeys(name for recipe in flat for name in recipe)
        if key not in SEEDS and len({repr(recipe.get(key)) for recipe in flat}) > 1
    ]
    shown_keys = keys[:3]
    return [
        ", ".join(f"{key.rpartition('.')[2]} = {recipe.get(key)}" for key in shown_keys) or run.name
        for run, recipe in zip(first, flat, strict=True)
    ]


def _mean_line(members: Sequence[Series], x: Sequence[float]) -> Series:
    columns = [list(_interpolate(x, one.mean)) for one in members]
    values_by_place = [
        [one for one in row if one is not None] for row in zip(*columns, strict=True)
    ]
    values_by_place = values_by_place or [[] for _ in x]
    broken = [(one.first_broken, one.broken_run) for one in members if one.first_broken is not None]
    step, run = min(broken, default=(None, None))
    return Series(
        [math.fsum(row) / len(row) if row else None for row in values_by_place],
        [min(row, default=None) for row in values_by_place],
        [max(row, default=None) for row in values_by_place],
        sorted({place for one in members for place in one.non_finite}),
        step,
        run,
    )


def _interpolate(x: Sequence[float], values: Sequence[float | None]) -> Iterator[float | None]:
    """Interpolate a curve at every place between its first and last points."""
    points = [(place, value) for place, value in zip(x, values, strict=True) if value is not None]
    places = [place for place, _ in points]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(points)]
    for place, value in zip(x, values, strict=True):
        index = bisect_left(places, place)
        if value is not None:
            yield value
        elif 0 < index < len(points):
            before = points[index - 1]
            yield before[1] + slopes[index - 1] * (place - before[0])
        else:
            yield None
