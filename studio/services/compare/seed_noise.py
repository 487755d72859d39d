"""Seed noise: how far runs scatter whose recipes differ in the seed only.

A difference between two runs is significant only if it exceeds what seeds alone cause. With `s` and
`t` the standard deviations of two recipes over their seeds, the difference of two runs has the
deviation sqrt(s² + t²); chance exceeds twice that about once in twenty. If only one of the recipes
was repeated, the other is assumed to scatter as much.
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
"""Recipe keys that only affect randomness."""

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
