"""What runs before this one have shown on this machine: how fast, how full, on which lengths."""

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
"""How many runs are looked back upon."""

_MAX_SIMILAR = 5
"""How many of those that resemble a recipe are believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRun:
    """One run that trained here to its end, or a calibration of a few steps."""

    recipe: AnyRecipe
    resolved: dict[str, Any]
    """What it found when it read its data: counts, lengths, formats."""
    steps: int
    tokens: int
    step_seconds: float
    overhead_seconds: float | None
    """What it spent on all but its steps; None where that is not known."""
    peak_bytes: float | None
    """None where it was measured in a way that cannot be compared."""
    overhead: Overhead | None = None
    """The same by what it was spent on, where its numbers tell."""
    is_calibration: bool = False

    @property
    def step_tokens(self) -> float:
        return self.tokens / self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReading:
    """Data that have been read for a recipe, though nothing was trained."""

    recipe: AnyRecipe
    resolved: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLengths:
    """How long the examples of a data set are, in a model's tokens."""

    longest: int
    answer: int
    """Tokens to learn in one example, at most."""
    rows: int
    row_tokens: float
    """Of a row, on average."""
    examples: int
    """Fewer than rows where several share one."""

    @property
    def example_tokens(self) -> float:
        """Of an example, on average."""
        return self.row_tokens * self.rows / self.examples


def load_recent(db: Session) -> list[ReferenceRun]:
    """Return what this machine has shown, the newest first."""
    done = select(Run).where(Run.status == RunStatus.SUCCEEDED)
    runs = db.exec(done.order_by(col(Run.id).desc()).limit(_MAX_RUNS)).all()
    said = eval_overhead.load_validation_times(db, runs)
    return [one for run in runs if (one := from_run(run, said.get(run.id or 0))) is not None]


def from_run(run: Run, said: ValidationTimes | None = None) -> ReferenceRun | None:
    """Return what a run has shown; None if it never got far, or ran on another machine."""
    seconds, told = run.metrics.get("train_seconds"), run.resolved
    is_here = told.get("device_name") == detect().device_name
    if not is_here or not seconds or not run.step or not run.tokens:
        return None
    total = run_progress.measure(run).total_seconds
    # Of a run that went on from a checkpoint, the last attempt's seconds are not the whole.
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
    """Return those whose steps resemble a recipe's: they differ in how many tokens a step has."""
    wanted = _speed_key(recipe)
    return [one for one in known if _speed_key(one.recipe) == wanted][:_MAX_SIMILAR]


def find_same_memory(known: Sequence[ReferenceRun], recipe: AnyRecipe) -> ReferenceRun | None:
    """Return one whose steps were as full as a recipe's will be, and were measured."""
    wanted = _memory_key(recipe)
    found = (one for one in known if one.peak_bytes and _memory_key(one.recipe) == wanted)
    return next(found, None)


def find_lengths(
    known: Iterable[ReferenceRun | DataReading], recipe: AnyRecipe
) -> TokenLengths | None:
    """Return how long a recipe's examples are, if some run has read them all with its model."""
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
    """Return all that decides how much memory a step holds."""
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
        # Where all were cut at a shorter length, nobody knows how long they are.
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
    """Say what becomes of rows that share examples, as if each were filled to the last token."""
    examples = math.ceil(found.rows * found.row_tokens / most)
    return replace(found, longest=most, answer=most, examples=examples)
