"""Runs side by side: which settings differ, and what came of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session, col, select

from studio.db.tables import Run, Sample
from studio.errors import InvalidError
from studio.recipe.dotted import flatten
from studio.services import runs

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
}
"""Metrics with a direction. Any other is neither better nor worse when it changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A run's final value of one metric, against the baseline's."""

    value: float | None
    delta: float | None = None
    """This minus the baseline's; None for the baseline itself, or where either is missing."""
    verdict: str = ""
    """better, worse, or nothing when the metric has no direction or did not change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    runs: Sequence[Run]
    base: Run
    settings: dict[str, list[Any]]
    """Dotted recipe key to the value in each run, in the order of `runs`."""
    differing: tuple[str, ...]
    """The keys whose values are not all alike."""
    metrics: dict[str, list[Cell]]


def compare(db: Session, ids: Sequence[int], base_id: int | None = None) -> Comparison:
    """Lay runs side by side; the first is the baseline unless another is named.

    Raises:
        InvalidError: too many runs, or a baseline that is not among them.

    """
    unique = list(dict.fromkeys(ids))
    if len(unique) > MOST_RUNS:
        raise InvalidError(f"At most {MOST_RUNS} runs can be compared at once.", param="runs")
    chosen = [runs.get(db, run_id) for run_id in unique]
    base = next((run for run in chosen if run.id == base_id), None)
    if base_id is not None and base is None:
        raise InvalidError(f"Run {base_id} is not among the runs compared.", param="base")
    if not chosen:
        raise InvalidError("No runs to compare.", hint="Name some: ?runs=1,2", param="runs")
    settings = _settings(chosen)
    return Comparison(
        runs=chosen,
        base=base or chosen[0],
        settings=settings,
        differing=tuple(key for key, values in settings.items() if len(set(values)) > 1),
        metrics=_metrics(chosen, base or chosen[0]),
    )


def samples(db: Session, run_ids: Sequence[int]) -> list[Sample]:
    """Return the answers of runs, by prompt, those before training first."""
    order = (col(Sample.position), col(Sample.stage).desc(), col(Sample.step), col(Sample.id))
    return list(db.exec(select(Sample).where(col(Sample.run_id).in_(run_ids)).order_by(*order)))


def _settings(chosen: Sequence[Run]) -> dict[str, list[Any]]:
    flat = [flatten(run.recipe.model_dump()) for run in chosen]
    names = dict.fromkeys(name for recipe in flat for name in recipe)
    return {name: [recipe.get(name) for recipe in flat] for name in names}


def _metrics(chosen: Sequence[Run], base: Run) -> dict[str, list[Cell]]:
    names = dict.fromkeys(name for run in chosen for name in run.metrics)
    return {name: [_cell(name, run, base) for run in chosen] for name in names}


def _cell(name: str, run: Run, base: Run) -> Cell:
    value, against = run.metrics.get(name), base.metrics.get(name)
    if run is base or value is None or against is None:
        return Cell(value=value)
    delta = value - against
    if not delta or math.isnan(delta) or name not in LOWER_IS_BETTER:
        return Cell(value=value, delta=delta)
    verdict = "better" if (delta < 0) == LOWER_IS_BETTER[name] else "worse"
    return Cell(value=value, delta=delta, verdict=verdict)
