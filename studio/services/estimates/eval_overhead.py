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
        times = count_validations(recipe, steps)
        written = _sample_tokens_between(recipe, times) + 2 * _sample_tokens(recipe)
        return self.rest + self.row * rows * times + self.token * written


def count_validations(recipe: AnyRecipe, steps: int) -> int:
    """Return how often a run validates: before the first step, at intervals, after the last."""
    every = recipe.evaluation.eval_steps
    return 1 + math.ceil(steps / (every if every >= 1 else math.ceil(steps * every)))


def load_validation_times(db: Session, runs: Sequence[Run]) -> dict[int, ValidationTimes]:
    """Return the validation times of runs from their metrics, by run id."""
    loss = aliased(Metric)
    # A validation starts right after the loss of its step is recorded.
    of_step = and_(
        col(loss.run_id) == Metric.run_id, col(loss.step) == Metric.step, col(loss.key) == "loss"
    )
    took = func.avg(col(Metric.seconds) - loss.seconds)
    query = (
        select(Metric.run_id, func.count(), took, func.max(Metric.seconds))
        .join(loss, of_step, isouter=True)
        .where(col(Metric.run_id).in_([run.id for run in runs]))
        .where(Metric.key == "eval_loss", Metric.step > 0)
        .group_by(col(Metric.run_id))
    )
    return {run: (count, each, last) for run, count, each, last in db.exec(query) if each}


def split_overhead(run: Run, said: ValidationTimes, beside: float) -> Overhead:
    """Split a run's overhead: time between steps is validation or, beyond that, sample answers."""
    count, each, last = said
    looking = each * (count + 1)
    between = _sample_tokens_between(run.recipe, count + 1)
    token = max(0.0, last - run.metrics["train_seconds"] - looking) / between if between else 0.0
    answering = token * (between + 2 * _sample_tokens(run.recipe))
    return Overhead(
        row=each / run.resolved["validation_rows"],
        token=token,
        rest=max(0.0, beside - looking - answering),
    )


def _sample_tokens_between(recipe: AnyRecipe, times: int) -> int:
    """Return the tokens of sample answers during training.

    They are generated at validations, except the first and the last.

    """
    return min(recipe.samples.between, max(0, times - 2)) * _sample_tokens(recipe)


def _sample_tokens(recipe: AnyRecipe) -> int:
    return recipe.samples.prompts * recipe.samples.max_new_tokens
