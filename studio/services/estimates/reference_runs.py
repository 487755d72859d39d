"""What earlier runs showed on this machine: speed, memory, example lengths and overhead.

The overhead is what a run takes besides its steps: validations, sample answers, loading and saving.

"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import and_
from sqlalchemy.orm import aliased
from sqlmodel import Session, col, func, select

from studio.db.states import RunStatus
from studio.db.tables import Metric, Run
from studio.errors import InvalidError
from studio.hardware import detect
from studio.intake.quality.length_stats import TokenStats
from studio.methods import METHODS, AnyRecipe
from studio.services.datasets import token_stats, versions
from studio.services.estimates import memory, run_progress

_MAX_RUNS = 50
"""Number of newest runs considered."""

_MAX_SIMILAR = 5
"""Number of similar runs used."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRun:
    """A run that finished on this machine, or a calibration of a few steps."""

    recipe: AnyRecipe
    resolved: dict[str, Any]
    """What it found when it read its data: counts, lengths, dtypes."""
    steps: int
    tokens: int
    step_seconds: float
    overhead_seconds: float | None
    """Seconds spent on everything except steps; None if unknown."""
    peak_bytes: float | None
    """None if it was measured in a way that is not comparable."""
    overhead: Overhead | None = None
    """The same by activity, if its metrics allow."""
    is_calibration: bool = False

    @property
    def step_tokens(self) -> float:
        return self.tokens / self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReading:
    """Data read for a recipe without training."""

    recipe: AnyRecipe
    resolved: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLengths:
    """How long a dataset's examples are, in a model's tokens."""

    longest: int
    answer: int
    """Maximum tokens trained on in one example."""
    rows: int
    row_tokens: float
    """Tokens of a row, on average."""
    examples: int
    """Fewer than rows if several are packed into one."""

    @property
    def example_tokens(self) -> float:
        """Return the mean tokens of an example."""
        return self.row_tokens * self.rows / self.examples


def load_recent(db: Session) -> list[ReferenceRun]:
    """Return this machine's reference runs, newest first."""
    query = select(Run).where(Run.status == RunStatus.SUCCEEDED)
    runs = db.exec(query.order_by(col(Run.id).desc()).limit(_MAX_RUNS)).all()
    validation_times = load_validation_times(db, runs)
    return [
        reference
        for run in runs
        if (reference := from_run(run, validation_times.get(run.id or 0))) is not None
    ]


def from_run(run: Run, validation_times: ValidationTimes | None = None) -> ReferenceRun | None:
    """Return a run as a reference; None if it measured nothing or ran on another machine."""
    seconds, resolved = run.metrics.get("train_seconds"), run.resolved
    is_here = resolved.get("device_name") == detect().device_name
    if not is_here or not seconds or not run.step or not run.tokens:
        return None
    total = run_progress.measure(run).total_seconds
    # For a resumed run, the last attempt's seconds are not the total.
    is_complete = total is not None and not run.resumed_step and total >= seconds
    overhead_seconds = total - seconds if is_complete and total is not None else None
    return ReferenceRun(
        recipe=run.recipe,
        resolved=resolved,
        steps=run.step,
        tokens=run.tokens,
        step_seconds=seconds / run.step,
        overhead_seconds=overhead_seconds,
        peak_bytes=memory.measured_peak(run),
        overhead=_measured_overhead(run, validation_times, overhead_seconds),
    )


def find_similar(references: Sequence[ReferenceRun], recipe: AnyRecipe) -> list[ReferenceRun]:
    """Return runs whose steps are similar to a recipe's, except for their tokens per step."""
    key = _speed_key(recipe)
    return [reference for reference in references if _speed_key(reference.recipe) == key][
        :_MAX_SIMILAR
    ]


def find_same_memory(references: Sequence[ReferenceRun], recipe: AnyRecipe) -> ReferenceRun | None:
    """Return a run whose steps use the same memory as a recipe's, with a measured peak."""
    key = _memory_key(recipe)
    matches = (
        reference
        for reference in references
        if reference.peak_bytes and _memory_key(reference.recipe) == key
    )
    return next(matches, None)


def find_lengths(
    readings: Iterable[ReferenceRun | DataReading], recipe: AnyRecipe
) -> TokenLengths | None:
    """Return a recipe's example lengths, if a run has read its data with the same model."""
    return next(_matching_lengths(readings, recipe), None)


def _measured_overhead(
    run: Run, validation_times: ValidationTimes | None, overhead_seconds: float | None
) -> Overhead | None:
    if (
        validation_times is None
        or overhead_seconds is None
        or not run.resolved.get("validation_rows")
    ):
        return None
    return split_overhead(run, validation_times, overhead_seconds)


def _speed_key(recipe: AnyRecipe) -> tuple[object, ...]:
    return (
        recipe.base_model,
        recipe.teacher,
        tuple(recipe.reward_models),
        recipe.method,
        recipe.precision,
        recipe.adapter.kind,
        recipe.adapter.quantised,
        recipe.optimisation.activation_checkpointing,
        recipe.optimisation.activation_offloading,
        recipe.data.packing,
        recipe.answer_tokens,
        recipe.mini_batch is None,
    )


def _data_key(recipe: AnyRecipe) -> tuple[object, ...]:
    """Return what determines the tokens of a row."""
    method = METHODS[recipe.method]
    return (
        recipe.base_model,
        recipe.dataset,
        method.sequences_per_row,
        recipe.reads_bad_answers,
        recipe.reads_pairs,
        recipe.negatives,
    )


def _memory_key(recipe: AnyRecipe) -> tuple[object, ...]:
    """Return everything that determines the memory of a step."""
    optimisation = recipe.optimisation
    return (
        *_speed_key(recipe),
        recipe.dataset,
        recipe.negatives,
        recipe.mini_batch,
        recipe.adapter,
        recipe.data.max_length,
        optimisation.optim,
        optimisation.per_device_train_batch_size,
        optimisation.gradient_accumulation_steps > 1,
        recipe.evaluation.per_device_eval_batch_size,
        recipe.answers_per_prompt,
        min(recipe.answers_at_once, recipe.answers_per_round),
    )


def _matching_lengths(
    readings: Iterable[ReferenceRun | DataReading], recipe: AnyRecipe
) -> Iterator[TokenLengths]:
    max_length = recipe.data.max_length
    for reading in readings:
        resolved, data = reading.resolved, reading.recipe.data
        is_same_data = _data_key(reading.recipe) == _data_key(recipe)
        # If all were truncated at a shorter length, their real length is unknown.
        is_untruncated = (
            resolved.get("longest_example", max_length) < data.max_length
            or data.max_length == max_length
        )
        if not is_same_data or not is_untruncated or not resolved.get("train_rows"):
            continue
        if not data.packing:
            lengths = _lengths_of_rows(resolved, max_length)
            yield _as_packed(lengths, max_length) if recipe.data.packing else lengths
        elif recipe.data.packing and data.max_length == max_length:
            yield replace(
                _lengths_of_rows(resolved, max_length), examples=resolved["train_examples"]
            )


def _lengths_of_rows(resolved: dict[str, Any], max_length: int) -> TokenLengths:
    return TokenLengths(
        longest=min(resolved["longest_example"], max_length),
        answer=min(resolved["longest_answer"], max_length),
        rows=resolved["train_rows"],
        row_tokens=min(resolved["train_tokens"] / resolved["train_rows"], max_length),
        examples=resolved["train_rows"],
    )


def _as_packed(lengths: TokenLengths, max_length: int) -> TokenLengths:
    """Return the lengths of packed rows, as if each example were filled completely."""
    examples = math.ceil(lengths.rows * lengths.row_tokens / max_length)
    return replace(lengths, longest=max_length, answer=max_length, examples=examples)


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
    """Return the tokens of all sample answers, of each draft that is followed."""
    return recipe.samples.prompts * recipe.samples.max_new_tokens * recipe.search.num_beams


CountSuggestion = Literal["", "now", "offer"]

MAX_AUTOMATIC_ROWS = 50_000
"""Rows up to which tokens are counted automatically: seconds of one CPU core, in a separate
process."""


def make_finder(db: Session) -> Callable[[AnyRecipe], TokenLengths | None]:
    """Return a function that finds counted lengths and reads each count only once."""
    counts: dict[tuple[object, ...], TokenStats | None] = {}

    def find(recipe: AnyRecipe) -> TokenLengths | None:
        if recipe.data.packing:
            return None  # How many rows share an example is known only once they are packed.
        key = (
            recipe.base_model,
            recipe.dataset,
            recipe.data.chat_template,
            METHODS[recipe.method].reads_bad_answers,
        )
        if key not in counts:
            counts[key] = token_stats.find_for_recipe(db, recipe)
        stats = counts[key]
        return _to_lengths(stats, recipe, _examples_per_row(db, recipe)) if stats else None

    return find


def _examples_per_row(db: Session, recipe: AnyRecipe) -> int:
    if recipe.fills_negatives:
        facts = versions.require(db, recipe.dataset).answers or {}
        return 1 if facts.get("scored") else 1 + recipe.negatives
    multiples = METHODS[recipe.method].examples_per_row
    return multiples.get(versions.require(db, recipe.dataset).kind, 1)


def suggest_count(db: Session, recipe: AnyRecipe) -> CountSuggestion:
    """Return whether to count a recipe's tokens now, to offer it, or neither."""
    if recipe.data.packing:
        return ""  # A count would not show how many rows share an example.
    try:
        request = token_stats.recipe_request(db, recipe)
        task = token_stats.latest_task(db, request)
    except (InvalidError, OSError):
        return ""  # The field with the error reports it.
    if not Path(request.location).is_absolute():
        return ""  # Its tokenizer has not been downloaded yet.
    if task is None:
        rows = request.version.train_rows + request.version.validation_rows
        return "now" if rows <= MAX_AUTOMATIC_ROWS else "offer"
    return "offer" if task.status.is_final else "now"


def _to_lengths(stats: TokenStats, recipe: AnyRecipe, multiple: int) -> TokenLengths | None:
    split, max_length = stats.train, recipe.data.max_length
    if not split.rows or not split.longest:
        return None
    longest = min(split.longest[0].tokens, max_length)
    held_out = 0 if stats.validation else max(1, round(split.rows * recipe.data.validation_share))
    examples = max(1, split.rows - held_out) * multiple
    return TokenLengths(
        longest=longest,
        answer=min(split.most_learnt or longest, longest),
        rows=examples,
        examples=examples,
        row_tokens=(split.tokens - split.truncated_tokens(max_length)) / (split.rows * multiple),
    )
