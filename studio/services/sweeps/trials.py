"""Trials: the runs of a sweep with their settings and results, and the best of them."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlmodel import Session, col, select

from studio.db.states import RunStatus
from studio.db.tables import Metric, Run, Sweep
from studio.recipe.dotted_keys import flatten
from studio.recipe.search_space import Scalar

MIN_TRIALS = 8
"""Runs that must have finished before setting importance is computed."""

State = Literal["going", "done", "pruned", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of a sweep: its settings and its result."""

    run: Run
    number: int
    settings: Mapping[str, Scalar]
    """The varied settings that have an effect on this run."""
    state: State
    value: float | None
    """Latest value of the sweep's metric; None unless finite."""
    intermediate_values: Sequence[float | None] = ()
    """All its values, in order; None where not finite. Empty unless requested."""


def list_trials(db: Session, sweep: Sweep, *, courses: bool = False) -> list[Trial]:
    """Return the trials of a sweep in the order in which they were queued."""
    query = select(Run).where(Run.sweep_id == sweep.id).order_by(col(Run.trial))
    rows = db.exec(query).all()
    values_by_run = _load_intermediate_values(db, sweep, rows) if courses else {}
    return [
        Trial(
            run=run,
            number=run.trial or 0,
            settings=_trial_settings(sweep, run),
            state=_trial_state(run),
            value=_trial_value(sweep, run),
            intermediate_values=values_by_run.get(run.id or 0, ()),
        )
        for run in rows
    ]


def best(sweep: Sweep, trials: Sequence[Trial]) -> Trial | None:
    """Return the best of the completed trials."""
    done = [trial for trial in trials if trial.state == "done" and trial.value is not None]
    sign = 1 if sweep.direction == "minimise" else -1
    return min(done, key=lambda one: sign * (one.value or 0), default=None)


def _trial_settings(sweep: Sweep, run: Run) -> dict[str, Scalar]:
    values = flatten(run.recipe.model_dump())
    return {name: values[name] for name in sweep.space if name in values}


def _trial_state(run: Run) -> State:
    if not run.status.is_final:
        return "going"
    if run.status is RunStatus.SUCCEEDED:
        return "pruned" if run.is_pruned else "done"
    return "failed"


def _trial_value(sweep: Sweep, run: Run) -> float | None:
    name = sweep.metric
    if run.recipe.checkpoints.load_best_model_at_end and f"best_{name}" in run.metrics:
        name = f"best_{name}"  # The value of the weights that were kept.
    value = run.metrics.get(name)
    return value if value is not None and math.isfinite(value) else None


def _load_intermediate_values(
    db: Session, sweep: Sweep, rows: Sequence[Run]
) -> dict[int, list[float | None]]:
    values_by_run: dict[int, list[float | None]] = defaultdict(list)
    query = (
        select(Metric.run_id, Metric.value)
        .where(col(Metric.run_id).in_([run.id for run in rows]), Metric.key == sweep.metric)
        .order_by(col(Metric.run_id), col(Metric.step))
    )
    for run_id, value in db.exec(query):
        values_by_run[run_id].append(value)
    return values_by_run
