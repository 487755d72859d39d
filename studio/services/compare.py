"""Runs side by side: which settings differ, what came of it, and whether it is more than chance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session, col, select

from studio.db.tables import Run, Sample
from studio.errors import InvalidError
from studio.recipe.dotted import flatten
from studio.services import differences, noise, runs
from studio.services.differences import Difference
from studio.services.noise import Judgement, Noise, Repeats

MOST_RUNS = 50

LOWER_IS_BETTER = {
    "loss": True,
    "eval_loss": True,
    "best_eval_loss": True,
    "mean_token_accuracy": False,
    "eval_mean_token_accuracy": False,
    "tokens_per_second": False,
    "step_seconds": True,
    "train_seconds": True,
    "peak_memory_bytes": True,
    "skipped_steps": True,
    "rating": False,
}
"""Metrics with a direction. Any other is neither better nor worse when it changes."""

STEADY = frozenset({"learning_rate", "loss_scale", "skipped_steps", "tokens"})
"""Numbers that are what they are at every step: smoothing them would show what never was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A run's final value of one metric, against the baseline's."""

    value: float | None
    delta: float | None = None
    """This minus the baseline's; None for the baseline itself, or where either is missing."""
    verdict: str = ""
    """better, worse, or nothing when the metric has no direction or did not change."""
    noise: Judgement = ""
    """Where the delta lies against what seeds alone do; nothing where there is no delta."""
    repeats: Repeats | None = None
    """The metric over the run and its repeats, where there are at least two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    runs: Sequence[Run]
    base: Run
    settings: dict[str, list[Any]]
    """Dotted recipe key to the value in each run, in the order of `runs`."""
    differing: tuple[str, ...]
    """The keys whose values are not all alike."""
    differences: list[Difference]
    metrics: dict[str, list[Cell]]
    noise: Noise


def compare(db: Session, ids: Sequence[int], base_id: int | None = None) -> Comparison:
    """Lay runs side by side; the first is the baseline unless another is named.

    Raises:
        InvalidError: too many runs, or a baseline that is not among them.

    """
    found = chosen(db, ids)
    base = next((run for run in found if run.id == base_id), None)
    if base_id is not None and base is None:
        raise InvalidError(f"Run {base_id} is not among the runs compared.", param="base")
    settings = _settings(found)
    known = noise.of(db, found)
    return Comparison(
        runs=found,
        base=base or found[0],
        settings=settings,
        differing=tuple(key for key, values in settings.items() if len(set(map(repr, values))) > 1),
        differences=differences.of(found),
        metrics=_metrics(found, base or found[0], known),
        noise=known,
    )


def chosen(db: Session, ids: Sequence[int]) -> list[Run]:
    """Return runs by number, each once.

    Raises:
        InvalidError: there are none, or too many.

    """
    unique = list(dict.fromkeys(ids))
    if len(unique) > MOST_RUNS:
        raise InvalidError(f"At most {MOST_RUNS} runs can be compared at once.", param="runs")
    if not unique:
        raise InvalidError("No runs to compare.", hint="Name some: ?runs=1,2", param="runs")
    return [runs.get(db, run_id) for run_id in unique]


def is_noisy(metric: str) -> bool:
    """Whether a curve jumps about so that a smoothed one tells more. Validations are too few."""
    return metric not in STEADY and not metric.startswith(("eval_", "best_", "nonfinite_"))


def samples(db: Session, run_ids: Sequence[int]) -> list[Sample]:
    """Return the answers of runs, by prompt, in the order in which they were written."""
    # Of those of one step, "after" comes last: going down the alphabet, it does.
    order = (col(Sample.position), col(Sample.step), col(Sample.stage).desc(), col(Sample.id))
    return list(db.exec(select(Sample).where(col(Sample.run_id).in_(run_ids)).order_by(*order)))


def _settings(found: Sequence[Run]) -> dict[str, list[Any]]:
    flat = [flatten(run.recipe.model_dump()) for run in found]
    names = dict.fromkeys(name for recipe in flat for name in recipe)
    return {name: [recipe.get(name) for recipe in flat] for name in names}


def _metrics(found: Sequence[Run], base: Run, known: Noise) -> dict[str, list[Cell]]:
    names = dict.fromkeys(name for run in found for name in run.metrics)
    return {name: [_cell(name, run, base, known) for run in found] for name in names}


def _cell(name: str, run: Run, base: Run, known: Noise) -> Cell:
    value, against = run.metrics.get(name), base.metrics.get(name)
    repeats = known.repeats(run.id or 0, name)
    if run is base or value is None or against is None:
        return Cell(value=value, repeats=repeats)
    delta = value - against
    return Cell(
        value=value,
        delta=delta,
        verdict=_verdict(name, delta),
        noise=known.judge(run.id or 0, base.id or 0, name, delta),
        repeats=repeats,
    )


def _verdict(name: str, delta: float) -> str:
    if not delta or math.isnan(delta) or name not in LOWER_IS_BETTER:
        return ""
    return "better" if (delta < 0) == LOWER_IS_BETTER[name] else "worse"
