"""What earlier runs showed on this machine: speed, memory and example lengths."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlmodel import Session, col, select

from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.hardware import detect
from studio.methods import AnyRecipe
from studio.services.estimates import eval_overhead, memory, run_progress
from studio.services.estimates.eval_overhead import Overhead, ValidationTimes

_MAX_RUNS = 50
"""Number of newest runs considered."""

_MAX_SIMILAR = 5
"""Number of similar runs used."""


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
    done = select(Run).where(Run.status == RunStatus.SUCCEEDED)
    runs = db.exec(done.order_by(col(Run.id).desc()).limit(_MAX_RUNS)).all()
    said = eval_overhead.load_validation_times(db, runs)
    return [one for run in runs if (one := from_run(run, said.get(run.id or 0))) is not None]


def from_run(run: Run, said: ValidationTimes | None = None) -> ReferenceRun | None:
    """Return a run as a reference; None if it measured nothing or ran on another machine."""
    seconds, told = run.metrics.get("train_seconds"), run.resolved
    is_here = told.get("device_name") == detect().device_name
    if not is_here or not seconds or not run.step or not run.tokens:
        return None
    total = run_progress.measure(run).total_seconds
    # For a resumed run, the last attempt's seconds are not the total.
    knows_all = total is not None and not run.resumed_step and total >= seconds
    beside = total - seconds if knows_all and total is not None else None
    return ReferenceRun(
        recipe=run.recipe,
        resolved=told,
        steps=run.step,
        tokens=run.tokens,
        step_seconds=seconds / run.step,
        overhead_seconds=beside,
        peak_bytes=memory.measured_peak(run),
        overhead=_measured_overhead(run, said, beside),
    )


def find_similar(known: Sequence[ReferenceRun], recipe: AnyRecipe) -> list[ReferenceRun]:
    """Return runs whose steps are similar to a recipe's, except for their tokens per step."""
    wanted = _speed_key(recipe)
    return [one for one in known if _speed_key(one.recipe) == wanted][:_MAX_SIMILAR]


def find_same_memory(known: Sequence[ReferenceRun], recipe: AnyRecipe) -> ReferenceRun | None:
    """Return a run whose steps use the same memory as a recipe's, with a measured peak."""
    wanted = _memory_key(recipe)
    found = (one for one in known if one.peak_bytes and _memory_key(one.recipe) == wanted)
    return next(found, None)


def find_lengths(
    known: Iterable[ReferenceRun | DataReading], recipe: AnyRecipe
) -> TokenLengths | None:
    """Return a recipe's example lengths, if a run has read its data with the same model."""
    return next(_matching_lengths(known, recipe), None)


def _measured_overhead(
    run: Run, said: ValidationTimes | None, beside: float | None
) -> Overhead | None:
    if said is None or beside is None or not run.resolved.get("validation_rows"):
        return None
    return eval_overhead.split_overhead(run, said, beside)


def _speed_key(recipe: AnyRecipe) -> tuple[object, ...]:
    return (
        recipe.base_model,
        recipe.method,
        recipe.precision,
        recipe.adapter.kind,
        recipe.adapter.quantised,
        recipe.optimisation.activation_checkpointing,
        recipe.data.packing,
    )


def _memory_key(recipe: AnyRecipe) -> tuple[object, ...]:
    """Return everything that determines the memory of a step."""
    knobs = recipe.optimisation
    return (
        *_speed_key(recipe),
        recipe.dataset,
        recipe.adapter,
        recipe.data.max_length,
        knobs.optim,
        knobs.per_device_train_batch_size,
        knobs.gradient_accumulation_steps > 1,
        recipe.evaluation.per_device_eval_batch_size,
    )


def _matching_lengths(
    known: Iterable[ReferenceRun | DataReading], recipe: AnyRecipe
) -> Iterator[TokenLengths]:
    most = recipe.data.max_length
    for one in known:
        told, data = one.resolved, one.recipe.data
        same = (one.recipe.base_model, one.recipe.dataset) == (recipe.base_model, recipe.dataset)
        # If all were truncated at a shorter length, their real length is unknown.
        is_whole = told.get("longest_example", most) < data.max_length or data.max_length == most
        if not same or not is_whole or not told.get("train_rows"):
            continue
        if not data.packing:
            found = _lengths_of_rows(told, most)
            yield _as_packed(found, most) if recipe.data.packing else found
        elif recipe.data.packing and data.max_length == most:
            yield replace(_lengths_of_rows(told, most), examples=told["train_examples"])


def _lengths_of_rows(told: dict[str, Any], most: int) -> TokenLengths:
    return TokenLengths(
        longest=min(told["longest_example"], most),
        answer=min(told["longest_answer"], most),
        rows=told["train_rows"],
        row_tokens=min(told["train_tokens"] / told["train_rows"], most),
        examples=told["train_rows"],
    )


def _as_packed(found: TokenLengths, most: int) -> TokenLengths:
    """Return the lengths of packed rows, as if each example were filled completely."""
    examples = math.ceil(found.rows * found.row_tokens / most)
    return replace(found, longest=most, answer=most, examples=examples)
