"""Seed noise: how far runs scatter whose recipes differ in the seed only.

A difference between two runs is significant only if it exceeds what seeds alone cause. With `s` and
`t` the standard deviations of two recipes over their seeds, the difference of two runs has the
deviation sqrt(s² + t²); chance exceeds twice that about once in twenty. If only one of the recipes
was repeated, the other is assumed to scatter as much.

Charts draw runs that differ in the seed only, or share a setting's value, as one line: the mean of
its runs at each place, with a band from the lowest to the highest. Runs log at different places, so
values are interpolated, but never extrapolated.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import Literal

from sqlmodel import Session, col, select

from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.recipe.dotted_keys import flatten
from studio.services.compare.run_labels import SEEDS, label_recipes
from studio.services.metrics.metrics import Curves, Series

MIN_REPEATS = 2
"""Fewest runs of a recipe for a standard deviation."""

MAX_SIBLINGS = 200
"""How many of the newest other runs of the experiments are considered."""

SIGNIFICANT_DEVIATIONS = 2
"""Deviations beyond which a difference is significant."""

NoiseVerdict = Literal["", "beyond", "within", "seed", "unknown"]
"""Beyond or within the noise; between seeds of one recipe; unknown; or empty."""

RecipeKey = tuple[tuple[str, str], ...]
"""Equal for runs that differ in the seed only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatStats:
    """Statistics of one metric over the runs of one recipe."""

    mean: float
    spread: float
    """Standard deviation."""
    n: int


@dataclass(frozen=True, slots=True)
class SeedNoise:
    """The scatter of each recipe."""

    recipes: Mapping[int, RecipeKey]
    """By run."""
    finals: Mapping[RecipeKey, Sequence[Mapping[str, float]]]
    """Final metrics of the runs that succeeded."""

    def repeats(self, run: int, metric: str) -> RepeatStats | None:
        """Return statistics over a run and its repeats, if there are enough of them."""
        values = [
            final[metric]
            for final in self.finals.get(self.recipes[run], ())
            if math.isfinite(final.get(metric, math.nan))
        ]
        if len(values) < MIN_REPEATS:
            return None
        return RepeatStats(mean=fmean(values), spread=stdev(values), n=len(values))

    def judge(self, run: int, base: int, metric: str, delta: float | None) -> NoiseVerdict:
        if delta is None or not math.isfinite(delta):
            return ""
        if self.recipes[run] == self.recipes[base]:
            return "seed"
        spreads = [
            stats.spread for run_id in (run, base) if (stats := self.repeats(run_id, metric))
        ]
        if not spreads:
            return "unknown"
        limit = SIGNIFICANT_DEVIATIONS * math.hypot(spreads[0], spreads[-1])
        return "beyond" if abs(delta) > limit else "within"

    def count(self, run: int) -> int:
        """Return how many runs of its recipe have succeeded."""
        return len(self.finals.get(self.recipes[run], ()))


def measure_noise(db: Session, runs: Sequence[Run]) -> SeedNoise:
    """Measure the noise from the given runs and the other runs of their experiments."""
    finals: dict[RecipeKey, list[Mapping[str, float]]] = defaultdict(list)
    for run in _with_siblings(db, runs):
        if run.status is RunStatus.SUCCEEDED:
            finals[recipe_key(run)].append(run.metrics)
    return SeedNoise({run.id or 0: recipe_key(run) for run in runs}, finals)


def recipe_key(run: Run) -> RecipeKey:
    """Return everything that determines a run except its seed."""
    flat = flatten(run.recipe.model_dump())
    settings = [(key, repr(value)) for key, value in flat.items() if key not in SEEDS]
    return (*settings, ("rows", repr(run.dataset_version_id)))


def _with_siblings(db: Session, runs: Sequence[Run]) -> Iterable[Run]:
    experiments = {run.experiment_id for run in runs}
    run_ids = [run.id for run in runs]
    others = (
        select(Run)
        .where(
            col(Run.experiment_id).in_(experiments),
            col(Run.status) == RunStatus.SUCCEEDED,
            col(Run.id).not_in(run_ids),
        )
        .order_by(col(Run.id).desc())
        .limit(MAX_SIBLINGS)
    )
    return [*runs, *db.exec(others)]


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
        names = label_recipes([members[0] for members in groups.values()])
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
