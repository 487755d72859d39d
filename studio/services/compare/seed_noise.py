"""Seed noise: how far runs of one recipe scatter that differ in nothing but their seed.

A difference between two runs says something only where it is larger than what seeds alone do. With
`s` and `t` the standard deviations of two recipes over their seeds, the difference of two runs has
the deviation sqrt(s² + t²); twice that is exceeded by chance about once in twenty. Where only one
of the two was repeated, the other is taken to scatter as much.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from sqlmodel import Session, col, select

from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.recipe.dotted_keys import flatten

SEEDS = frozenset({"optimisation.seed"})
"""The keys of a recipe that are chance and nothing else."""

MIN_REPEATS = 2
"""Runs of one recipe without which nothing can be said."""

MAX_SIBLINGS = 200
"""Of the experiments' other runs, as many of the newest are looked at."""

SIGNIFICANT_DEVIATIONS = 2
"""By how many deviations a difference exceeds chance."""

NoiseVerdict = Literal["", "beyond", "within", "seed", "unknown"]
"""Where a difference lies: beyond or within the noise; between seeds of one recipe; unknown."""

RecipeKey = tuple[tuple[str, str], ...]
"""What runs have in common that differ in nothing but their seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatStats:
    """One metric over the runs of one recipe."""

    mean: float
    spread: float
    """Standard deviation."""
    n: int


@dataclass(frozen=True, slots=True)
class SeedNoise:
    """What is known of each recipe's scatter."""

    recipes: Mapping[int, RecipeKey]
    """By run."""
    finals: Mapping[RecipeKey, Sequence[Mapping[str, float]]]
    """The final numbers of the runs that succeeded."""

    def repeats(self, run: int, metric: str) -> RepeatStats | None:
        """Return a metric over a run and its repeats, where there are enough of them."""
        told = [
            one[metric]
            for one in self.finals.get(self.recipes[run], ())
            if math.isfinite(one.get(metric, math.nan))
        ]
        if len(told) < MIN_REPEATS:
            return None
        return RepeatStats(mean=fmean(told), spread=stdev(told), n=len(told))

    def judge(self, run: int, base: int, metric: str, delta: float | None) -> NoiseVerdict:
        if delta is None or not math.isfinite(delta):
            return ""
        if self.recipes[run] == self.recipes[base]:
            return "seed"
        known = [found.spread for one in (run, base) if (found := self.repeats(one, metric))]
        if not known:
            return "unknown"
        limit = SIGNIFICANT_DEVIATIONS * math.hypot(known[0], known[-1])
        return "beyond" if abs(delta) > limit else "within"

    def count(self, run: int) -> int:
        """Return how many runs of its recipe have succeeded."""
        return len(self.finals.get(self.recipes[run], ()))


def measure_noise(db: Session, chosen: Sequence[Run]) -> SeedNoise:
    """Look at runs, and at the others of their experiments."""
    finals: dict[RecipeKey, list[Mapping[str, float]]] = defaultdict(list)
    for run in _with_siblings(db, chosen):
        if run.status is RunStatus.SUCCEEDED:
            finals[recipe_key(run)].append(run.metrics)
    return SeedNoise({run.id or 0: recipe_key(run) for run in chosen}, finals)


def recipe_key(run: Run) -> RecipeKey:
    """Return all that a run was given but its seed; runs of one group have it in common."""
    flat = flatten(run.recipe.model_dump())
    told = [(key, repr(value)) for key, value in flat.items() if key not in SEEDS]
    return (*told, ("rows", repr(run.dataset_version_id)))


def _with_siblings(db: Session, chosen: Sequence[Run]) -> Iterable[Run]:
    experiments = {run.experiment_id for run in chosen}
    known = [run.id for run in chosen]
    others = (
        select(Run)
        .where(
            col(Run.experiment_id).in_(experiments),
            col(Run.status) == RunStatus.SUCCEEDED,
            col(Run.id).not_in(known),
        )
        .order_by(col(Run.id).desc())
        .limit(MAX_SIBLINGS)
    )
    return [*chosen, *db.exec(others)]
