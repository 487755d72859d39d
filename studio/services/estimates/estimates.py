"""Estimates of the memory and time a recipe needs on this machine, and how accurate they are.

Estimates are compared with what runs measure. Once three runs have finished, this machine's median
error corrects later estimates; the estimate stored with a submitted run never changes.

"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import chain
from typing import Any

from sqlmodel import Session, col, select

from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.errors import InvalidError
from studio.hardware import detect
from studio.methods import AnyRecipe
from studio.services.datasets import versions
from studio.services.estimates import (
    calibrations,
    dry_runs,
    memory,
    memory_assumptions,
    memory_fit,
    reference_runs,
    run_duration,
    run_progress,
    token_lengths,
)
from studio.services.estimates.activation_memory import BatchShape
from studio.services.estimates.memory import MemoryBreakdown
from studio.services.estimates.memory_fit import HostMemory, Verdict
from studio.services.estimates.reference_runs import DataReading, ReferenceRun, TokenLengths
from studio.services.estimates.run_duration import TimeEstimate
from studio.services.precision import recommendation
from studio.weights.model_facts import ModelFacts

FactsLookup = Callable[[str], ModelFacts | None]

HOST_OVERHEAD_BYTES, GPU_OVERHEAD_BYTES = 400_000_000, 500_000_000
"""Bytes that are not counted as the run's: the training packages on a host, the driver on a GPU."""

_MIN_RUNS = 3
"""Runs needed before their median error is used."""
_MIN_FACTOR, _MAX_FACTOR = 0.5, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """The correction learned on this machine: measured memory divided by estimated memory."""

    factor: float = 1.0
    runs: int = 0
    """Number of runs it is based on; three are needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Memory by part, corrected from earlier runs, and compared with what is available."""

    estimate: MemoryBreakdown
    learnt: Correction
    room: int
    """Bytes available on the GPU or the host."""
    beside: int
    knows_lengths: bool
    """Whether example lengths are known; otherwise every example counts as the longest allowed."""
    is_exact: bool = False
    """Whether a dry run counted it; otherwise it comes from the formula."""
    closed: int | None = None
    """The formula's result if a dry run replaces it; None if the formula does not cover the
    model."""
    host: HostMemory | None = None
    """Host memory that a run on a GPU needs; None if the host is the device."""
    assumed: tuple[str, ...] = ()
    """The assumptions behind it, one sentence each."""

    @property
    def total(self) -> int:
        return round(self.estimate.total * self.learnt.factor)

    @property
    def device(self) -> Verdict:
        """Return the verdict for the device alone."""
        return memory_fit.judge_fit(self.total + self.beside, self.room)

    @property
    def verdict(self) -> Verdict:
        """Return the worse of the verdicts for device and host."""
        return memory_fit.worst_verdict(self.device, self.host.verdict if self.host else "fits")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEstimate:
    memory: MemoryEstimate | None
    """None if the activation memory of the model's layers is unknown."""
    timing: TimeEstimate
    measured: float | None
    """The peak of an earlier run or calibration with the same memory use, if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MedianError:
    """Median estimation errors as fractions of the measured values; None without any."""

    memory: float | None
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateError:
    """A finished run's estimates at submission compared with its measurements."""

    run: Run
    memory: float | None
    """The relative error of the estimate; positive if it was too high."""
    seconds: float | None


@dataclass(frozen=True, slots=True)
class EstimateInputs:
    """The data behind estimates, read once for many recipes."""

    reference_runs: Sequence[ReferenceRun]
    facts_for: FactsLookup
    readings: Sequence[DataReading] = ()
    count: Callable[[AnyRecipe], TokenLengths | None] = lambda _recipe: None
    """Returns token lengths counted without a run, if there are any."""

    def lengths(self, recipe: AnyRecipe) -> TokenLengths | None:
        read = reference_runs.find_lengths(chain(self.reference_runs, self.readings), recipe)
        return read or self.count(recipe)

    def correction_for(self, recipe: AnyRecipe) -> Correction:
        """Return the correction from runs with this precision and adapter kind.

        Other runs have other errors.

        """
        kind = (recipe.precision, recipe.adapter.kind)
        ratios = [
            one.peak_bytes / guess.total
            for one in self.reference_runs
            if (one.recipe.precision, one.recipe.adapter.kind) == kind
            if one.peak_bytes and (guess := self._recompute(one)) is not None
        ]
        if len(ratios) < _MIN_RUNS:
            return Correction()
        factor = min(max(statistics.median(ratios), _MIN_FACTOR), _MAX_FACTOR)
        return Correction(factor=factor, runs=len(ratios))

    def _recompute(self, one: ReferenceRun) -> MemoryBreakdown | None:
        """Estimate an earlier run as if it were new, with the lengths that it found."""
        facts = self.facts_for(one.recipe.base_model)
        return memory.estimate_from_resolved(one.recipe, facts, one.resolved) if facts else None


def load_inputs(db: Session) -> EstimateInputs:
    """Load the data behind estimates."""

    @cache
    def find(name: str) -> ModelFacts | None:
        try:
            return recommendation.load_model_facts(db, name)
        except InvalidError:
            return None  # The model of an earlier run was deleted since.

    seen = [*calibrations.load_reference_runs(db), *reference_runs.load_recent(db)]
    return EstimateInputs(seen, find, [*dry_runs.load_readings(db)], token_lengths.make_finder(db))


def estimate_recipe(
    db: Session, recipe: AnyRecipe, by: EstimateInputs | None = None
) -> RunEstimate:
    """Estimate the memory and time a recipe needs.

    Raises:
        InvalidError: the model or dataset does not exist.

    """
    by = by or load_inputs(db)
    alike = reference_runs.find_similar(by.reference_runs, recipe)
    twin = reference_runs.find_same_memory(by.reference_runs, recipe)
    data = versions.require(db, recipe.dataset)
    facts = recommendation.load_model_facts(db, recipe.base_model)
    return RunEstimate(
        memory=best_memory_estimate(db, recipe, facts, by),
        timing=run_duration.estimate_time(recipe, data, by.lengths(recipe), alike),
        measured=twin.peak_bytes if twin else None,
    )


def best_memory_estimate(
    db: Session, recipe: AnyRecipe, facts: ModelFacts, by: EstimateInputs
) -> MemoryEstimate | None:
    """Return the best memory estimate: from a dry run, else from the formula."""
    return dry_run_estimate(db, recipe, facts, by) or formula_estimate(recipe, facts, by)


def dry_run_estimate(
    db: Session, recipe: AnyRecipe, facts: ModelFacts, by: EstimateInputs
) -> MemoryEstimate | None:
    """Return the memory as counted by a dry run; None without one."""
    # Without any dry run, skip hashing the recipe to look for one.
    estimate = dry_runs.estimate_memory(db, recipe, facts) if by.readings else None
    if estimate is None:
        return None
    closed = formula_estimate(recipe, facts, by)
    return MemoryEstimate(
        estimate=estimate,
        learnt=Correction(),
        room=detect().usable_memory_bytes,
        beside=_overhead_bytes(),
        knows_lengths=True,
        is_exact=True,
        closed=closed.total if closed else None,
        host=memory_fit.estimate_host(
            recipe, facts, _batch_shape(recipe, by.lengths(recipe)), detect()
        ),
    )


def formula_correction(
    db: Session, recipe: AnyRecipe, facts: ModelFacts, by: EstimateInputs
) -> Correction:
    """Return the correction of the formula for similar recipes, preferably from a dry run."""
    exact, closed = (
        dry_run_estimate(db, recipe, facts, by),
        formula_estimate(recipe, facts, by, Correction()),
    )
    if exact is None or closed is None:
        return by.correction_for(recipe)
    return Correction(factor=exact.total / closed.total)


def formula_estimate(
    recipe: AnyRecipe, facts: ModelFacts, by: EstimateInputs, learnt: Correction | None = None
) -> MemoryEstimate | None:
    """Return the formula's memory estimate, with a given correction or that of earlier runs."""
    found, hardware = by.lengths(recipe), detect()
    on_gpu, load = hardware.device != "cpu", _batch_shape(recipe, found)
    estimate = memory.estimate(recipe, facts, load, on_gpu=on_gpu)
    if estimate is None:
        return None
    return MemoryEstimate(
        estimate=estimate,
        learnt=learnt or by.correction_for(recipe),
        room=hardware.usable_memory_bytes,
        beside=_overhead_bytes(),
        knows_lengths=found is not None,
        host=memory_fit.estimate_host(recipe, facts, load, hardware),
        assumed=tuple(memory_assumptions.list_assumptions(recipe, facts, on_gpu=on_gpu)),
    )


def estimate_record(db: Session, recipe: AnyRecipe) -> dict[str, Any]:
    """Return an estimate as stored with a run."""
    made = estimate_recipe(db, recipe)
    told: dict[str, Any] = {"timing": asdict(made.timing)}
    if made.memory is not None:
        told["memory"] = {
            "total": made.memory.total,
            "parts": made.memory.estimate.parts,
            "length": made.memory.estimate.length,
            "factor": made.memory.learnt.factor,
            "verdict": made.memory.verdict,
        }
    return told


def measure_error(run: Run) -> EstimateError:
    """Compare a finished run's estimates with its measurements."""
    took = run_progress.measure(run).total_seconds if not run.resumed_step else None
    guess = run.estimate.get("memory", {}).get("total")
    seconds = run.estimate.get("timing", {}).get("seconds")
    return EstimateError(
        run=run,
        memory=_relative_error(guess, memory.measured_peak(run)),
        seconds=_relative_error(seconds, took) if run.step == run.total_steps else None,
    )


def list_errors(db: Session, model: str | None = None) -> list[EstimateError]:
    """Return the estimation errors of all finished runs, or those of one model, newest first."""
    done = select(Run).where(Run.status == RunStatus.SUCCEEDED).order_by(col(Run.id).desc())
    found = [measure_error(run) for run in db.exec(done) if model in (None, run.recipe.base_model)]
    return [one for one in found if one.memory is not None or one.seconds is not None]


def median_error(misses: Sequence[EstimateError]) -> MedianError:
    """Return the median absolute errors."""
    memory_off = [abs(one.memory) for one in misses if one.memory is not None]
    seconds_off = [abs(one.seconds) for one in misses if one.seconds is not None]
    return MedianError(
        memory=statistics.median(memory_off) if memory_off else None,
        seconds=statistics.median(seconds_off) if seconds_off else None,
    )


def _overhead_bytes() -> int:
    return HOST_OVERHEAD_BYTES if detect().device == "cpu" else GPU_OVERHEAD_BYTES


def _batch_shape(recipe: AnyRecipe, found: TokenLengths | None) -> BatchShape:
    if found is None:
        return memory.batch_shape(recipe, {})
    batch = min(recipe.optimisation.per_device_train_batch_size, found.examples)
    rows = (found.rows, found.row_tokens)
    return BatchShape(batch, found.longest, found.answer, *rows, is_packed=recipe.data.packing)


def _relative_error(guess: float | None, found: float | None) -> float | None:
    return guess / found - 1 if guess and found else None
