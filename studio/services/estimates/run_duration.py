"""How long a run will take: steps, tokens, and seconds with an interval."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from studio.db.tables import DatasetVersion
from studio.methods import AnyRecipe
from studio.services.estimates.reference_runs import ReferenceRun, TokenLengths

_SINGLE_RUN_DOUBT = 0.2
"""Uncertainty of a single reference run, as a fraction either way."""
_SEVERAL_RUNS_DOUBT = 0.1
"""The same of several runs that agree."""
_SCALING_DOUBT = 0.25
"""Added uncertainty per natural logarithm of the ratio of tokens per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeEstimate:
    """A run's expected duration. Seconds are None until there is a reference run."""

    steps: int
    tokens: int | None
    """Tokens of all steps; None until a run has read the data with this model."""
    is_most: bool = False
    """Whether steps are an upper bound: how many rows are packed into an example is unknown, or the
    time limit may end the run before."""
    seconds: float | None = None
    """From the start of the process to its end."""
    least_seconds: float | None = None
    most_seconds: float | None = None
    runs: int = 0
    """Number of reference runs it is based on."""
    is_calibrated: bool = False
    """Whether one of them is a calibration."""
    is_time_limit: bool = False
    """Whether the seconds are the recipe's time limit: the run is expected to take longer without
    it, or its speed is unknown."""


def estimate_time(
    recipe: AnyRecipe,
    data: DatasetVersion,
    lengths: TokenLengths | None,
    similar_runs: Sequence[ReferenceRun],
) -> TimeEstimate:
    """Estimate a run's duration from similar runs, if there are any, and from its time limit."""
    estimate = _estimate_steps(recipe, data, lengths, similar_runs)
    minutes = recipe.optimisation.max_minutes
    return _limit_time(estimate, minutes * 60) if minutes is not None else estimate


def _estimate_steps(
    recipe: AnyRecipe,
    data: DatasetVersion,
    lengths: TokenLengths | None,
    similar_runs: Sequence[ReferenceRun],
) -> TimeEstimate:
    batch = _effective_batch(recipe)
    steps = count_steps(recipe, lengths.examples if lengths else _training_rows(recipe, data))
    step_tokens = lengths.example_tokens * batch if lengths else None
    tokens = round(steps * step_tokens) if step_tokens and not recipe.answer_tokens else None
    is_most = recipe.data.packing and not lengths and recipe.optimisation.max_steps is None
    estimate = TimeEstimate(steps=steps, tokens=tokens, is_most=is_most)
    if not similar_runs or step_tokens is None:
        return estimate
    ratios = [_size_ratio(recipe, step_tokens, run) for run in similar_runs]
    step_seconds = [
        run.step_seconds * ratio for run, ratio in zip(similar_runs, ratios, strict=True)
    ]
    fastest, slowest = _interval(step_seconds, ratios)
    overhead = _overhead_seconds(recipe, steps, _validation_rows(recipe, data), similar_runs)
    return TimeEstimate(
        steps=steps,
        tokens=estimate.tokens,
        seconds=steps * statistics.median(step_seconds) + overhead,
        least_seconds=steps * fastest + overhead * (1 - _SEVERAL_RUNS_DOUBT),
        most_seconds=steps * slowest + overhead * (1 + _SEVERAL_RUNS_DOUBT),
        runs=len(similar_runs),
        is_calibrated=any(run.is_calibration for run in similar_runs),
    )


def _limit_time(estimate: TimeEstimate, limit: float) -> TimeEstimate:
    """Return the estimate of a run that makes only as many of the steps as fit."""
    if estimate.seconds is not None and estimate.seconds <= limit:
        return estimate
    if estimate.seconds is None:
        steps, tokens = estimate.steps, estimate.tokens
    else:
        share = limit / estimate.seconds
        steps = max(1, round(estimate.steps * share))
        tokens = round(estimate.tokens * share) if estimate.tokens else None
    return replace(
        estimate,
        steps=steps,
        tokens=tokens,
        is_most=True,
        seconds=limit,
        least_seconds=min(estimate.least_seconds or limit, limit),
        most_seconds=limit,
        is_time_limit=True,
    )


def count_steps(recipe: AnyRecipe, examples: int) -> int:
    """Return the number of optimizer updates, counted as transformers counts them."""
    optimisation = recipe.optimisation
    if optimisation.max_steps is not None:
        return optimisation.max_steps
    batches = math.ceil(examples / optimisation.per_device_train_batch_size)
    updates = max(1, math.ceil(batches / optimisation.gradient_accumulation_steps))
    return math.ceil(optimisation.num_train_epochs * updates)


def _training_rows(recipe: AnyRecipe, data: DatasetVersion) -> int:
    """Return the training rows; without a validation split, some are held out."""
    held_out = 0 if data.validation_rows else _validation_rows(recipe, data)
    return max(1, data.train_rows - held_out)


def _validation_rows(recipe: AnyRecipe, data: DatasetVersion) -> int:
    """Return the number of validation rows."""
    share = max(1, round(data.train_rows * recipe.data.validation_share))
    return data.validation_rows or share


def _effective_batch(recipe: AnyRecipe) -> int:
    optimisation = recipe.optimisation
    return optimisation.per_device_train_batch_size * optimisation.gradient_accumulation_steps


def _size_ratio(recipe: AnyRecipe, step_tokens: float, run: ReferenceRun) -> float:
    """Return how many times as large a recipe's steps are as those of a run.

    In tokens; in answers, if the model writes them: how long they get is not known before.
    """
    if not recipe.answer_tokens:
        return step_tokens / run.step_tokens
    return _step_answers(recipe) / _step_answers(run.recipe)


def _step_answers(recipe: AnyRecipe) -> int:
    return _effective_batch(recipe) * recipe.answers_per_prompt


def _interval(step_seconds: Sequence[float], ratios: Sequence[float]) -> tuple[float, float]:
    """Return the fastest and slowest expected seconds per step: as observed, plus doubt."""
    distance = min(abs(math.log(ratio)) for ratio in ratios)
    doubt = (
        _SINGLE_RUN_DOUBT if len(step_seconds) == 1 else _SEVERAL_RUNS_DOUBT
    ) + _SCALING_DOUBT * distance
    return min(step_seconds) / (1 + doubt), max(step_seconds) * (1 + doubt)


def _overhead_seconds(
    recipe: AnyRecipe, steps: int, rows: int, similar_runs: Sequence[ReferenceRun]
) -> float:
    """Return the median overhead of similar runs: loading, validations, sample answers, saving.

    Runs that search for answers in the same way come first: validations may write answers.
    """
    alike = [run for run in similar_runs if run.recipe.search == recipe.search] or similar_runs
    overheads = [
        run.overhead.estimate_seconds(recipe, rows, steps) if run.overhead else run.overhead_seconds
        for run in alike
        if run.overhead_seconds is not None
    ]
    return statistics.median(overheads) if overheads else 0.0
