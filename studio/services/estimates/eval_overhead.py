"""Overhead of a run besides its steps: validations, sample answers, loading and saving.

Estimated before a run and measured after it.

"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import and_
from sqlalchemy.orm import aliased
from sqlmodel import Session, col, func, select

from studio.db.tables import Metric, Run
from studio.methods import AnyRecipe

ValidationTimes = tuple[int, float, float]
"""A run's validations after the first, the seconds each took, and when the last one ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Seconds that a run spent on everything except its steps."""

    row: float
    """Seconds to validate one row once."""
    token: float
    """Seconds to generate one token, assuming each answer has the maximum length."""
    rest: float
    """Seconds spent loading and saving."""

    def estimate_seconds(self, recipe: AnyRecipe, rows: int, steps: int) -> float:
        """Return the overhead of another run that validates this many rows."""
        validations = count_validations(recipe, steps)
        tokens = _sample_tokens_between(recipe, validations) + 2 * _sample_tokens(recipe)
        return self.rest + self.row * rows * validations + self.token * tokens


def count_validations(recipe: AnyRecipe, steps: int) -> int:
    """Return how often a run validates: before the first step, at intervals, after the last."""
    interval = recipe.evaluation.eval_steps
    return 1 + math.ceil(steps / (interval if interval >= 1 else math.ceil(steps * interval)))


def load_validation_times(db: Session, runs: Sequence[Run]) -> dict[int, ValidationTimes]:
    """Return the validation times of runs from their metrics, by run id."""
    loss = aliased(Metric)
    # A validation starts right after the loss of its step is recorded.
    of_step = and_(
        col(loss.run_id) == Metric.run_id, col(loss.step) == Metric.step, col(loss.key) == "loss"
    )
    mean_seconds = func.avg(col(Metric.seconds) - loss.seconds)
    query = (
        select(Metric.run_id, func.count(), mean_seconds, func.max(Metric.seconds))
        .join(loss, of_step, isouter=True)
        .where(col(Metric.run_id).in_([run.id for run in runs]))
        .where(Metric.key == "eval_loss", Metric.step > 0)
        .group_by(col(Metric.run_id))
    )
    return {run: (count, seconds, last) for run, count, seconds, last in db.exec(query) if seconds}


def split_overhead(
    run: Run, validation_times: ValidationTimes, overhead_seconds: float
) -> Overhead:
    """Split a run's overhead: time between steps is validation or, beyond that, sample answers."""
    count, each, last = validation_times
    validation_seconds = each * (count + 1)
    tokens_between = _sample_tokens_between(run.recipe, count + 1)
    token = (
        max(0.0, last - run.metrics["train_seconds"] - validation_seconds) / tokens_between
        if tokens_between
        else 0.0
    )
    sample_seconds = token * (tokens_between + 2 * _sample_tokens(run.recipe))
    return Overhead(
        row=each / run.resolved["validation_rows"],
        token=token,
        rest=max(0.0, overhead_seconds - validation_seconds - sample_seconds),
    )


def _sample_tokens_between(recipe: AnyRecipe, validations: int) -> int:
    """Return the tokens of sample answers during training.

    They are generated at validations, except the first and the last.

    """
    return min(recipe.samples.between, max(0, validations - 2)) * _sample_tokens(recipe)


def _sample_tokens(recipe: AnyRecipe) -> int:
    return recipe.samples.prompts * recipe.samples.max_new_tokens
