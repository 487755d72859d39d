"""Estimates of the memory and time a recipe needs on this machine, and how accurate they are.

Estimates are compared with what runs measure. Once three runs have finished, this machine's median
error corrects later estimates; the estimate stored with a submitted run never changes.

"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import chain
from typing import Any

from sqlmodel import Session, col, select

from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.errors import InvalidError
from studio.hardware import detect
from studio.methods import AnyRecipe
from studio.recipe.precision import PRECISIONS
from studio.services.datasets import versions
from studio.services.estimates import (
    activation_memory,
    host_memory,
    judge_memory,
    measurements,
    memory,
    reference_runs,
    run_duration,
    run_progress,
    verdicts,
)
from studio.services.estimates.activation_memory import BatchShape
from studio.services.estimates.host_memory import HostMemory
from studio.services.estimates.judge_memory import JudgeFacts
from studio.services.estimates.memory import MemoryBreakdown
from studio.services.estimates.reference_runs import DataReading, ReferenceRun, TokenLengths
from studio.services.estimates.run_duration import TimeEstimate
from studio.services.estimates.verdicts import Verdict
from studio.services.precision import number_formats, recommendation
from studio.weights.model_facts import ModelFacts

FactsLookup = Callable[[str], ModelFacts | None]

HOST_OVERHEAD_BYTES, GPU_OVERHEAD_BYTES = 400_000_000, 500_000_000
"""Bytes that are not counted as the run's: the training packages on a host, the driver on a GPU."""

MIN_COMPARED_BYTES, MIN_COMPARED_SECONDS = 500_000_000, 60
"""Relative errors of smaller runs are not in medians: noise and fixed costs outweigh them."""

_MIN_RUNS = 3
"""Runs needed before their median error is used."""
_MIN_FACTOR, _MAX_FACTOR = 0.5, 2.0

EMULATED = (
    "Assumes emulated products: attention keeps its scores, because no fused kernel rounds its "
    "inputs."
)
EIGHT_BITS = "Assumes no 16-bit copies of weights: each 8-bit product casts its own and frees it."
UNMEASURED = "On a GPU this is derived from the packages' source code and has not been measured."


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
    correction: Correction
    room: int
    """Bytes available on the GPU or the host."""
    overhead_bytes: int
    knows_lengths: bool
    """Whether example lengths are known; otherwise every example counts as the longest allowed."""
    is_exact: bool = False
    """Whether a dry run counted it; otherwise it comes from the formula."""
    formula_total: int | None = None
    """The formula's result if a dry run replaces it; None if the formula does not cover the
    model."""
    host: HostMemory | None = None
    """Host memory that a run on a GPU needs; None if the host is the device."""
    assumptions: tuple[str, ...] = ()
    """The assumptions behind it, one sentence each."""

    @property
    def total(self) -> int:
        return round(self.estimate.total * self.correction.factor)

    @property
    def device(self) -> Verdict:
        """Return the verdict for the device alone."""
        return verdicts.judge_fit(self.total + self.overhead_bytes, self.room)

    @property
    def verdict(self) -> Verdict:
        """Return the worse of the verdicts for device and host."""
        return verdicts.worst_verdict(self.device, self.host.verdict if self.host else "fits")


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
    excludes_some: bool
    """Whether some errors do not count because their runs were too small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateError:
    """A finished run's estimates at submission compared with its measurements."""

    run: Run
    memory: float | None
    """The relative error of the estimate; positive if it was too high."""
    seconds: float | None
    measured_bytes: float | None = None
    measured_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class EstimateInputs:
    """The data behind estimates, read once for many recipes."""

    reference_runs: Sequence[ReferenceRun]
    facts_for: FactsLookup
    readings: Sequence[DataReading] = ()
    count: Callable[[AnyRecipe], TokenLengths | None] = lambda _recipe: None
    """Returns token lengths counted without a run, if there are any."""
    fit: Callable[[AnyRecipe], AnyRecipe] = lambda recipe: recipe
    """Returns a recipe that reads no more texts with a row than its data has."""
    judges: Callable[[AnyRecipe], Sequence[JudgeFacts] | None] = lambda _recipe: ()
    """Returns what is known of the reward models that a recipe asks; None if one is unknown."""

    def lengths(self, recipe: AnyRecipe) -> TokenLengths | None:
        read = reference_runs.find_lengths(chain(self.reference_runs, self.readings), recipe)
        return read or self.count(recipe)

    def correction_for(self, recipe: AnyRecipe) -> Correction:
        """Return the correction from runs with this precision and adapter kind.

        Other runs have other errors.

        """
        kind = (recipe.precision, recipe.adapter.kind)
        ratios = [
            run.peak_bytes / estimate.total
            for run in self.reference_runs
            if (run.recipe.precision, run.recipe.adapter.kind) == kind
            if run.peak_bytes and (estimate := self._recompute(run)) is not None
        ]
        if len(ratios) < _MIN_RUNS:
            return Correction()
        factor = min(max(statistics.median(ratios), _MIN_FACTOR), _MAX_FACTOR)
        return Correction(factor=factor, runs=len(ratios))

    def _recompute(self, run: ReferenceRun) -> MemoryBreakdown | None:
        """Estimate an earlier run as if it were new, with the lengths that it found."""
        facts, teacher = self.facts_for(run.recipe.base_model), self.teacher_facts(run.recipe)
        if facts is None:
            return None
        judges = self.judges(run.recipe)
        return memory.estimate_from_resolved(run.recipe, facts, run.resolved, teacher, judges)

    def teacher_facts(self, recipe: AnyRecipe) -> ModelFacts | None:
        """Return what is known of a recipe's teacher; None without one, or if it is unknown."""
        return self.facts_for(recipe.teacher.name) if recipe.teacher else None


def load_inputs(db: Session) -> EstimateInputs:
    """Load the data behind estimates."""

    @cache
    def find(name: str) -> ModelFacts | None:
        try:
            return recommendation.load_model_facts(db, name)
        except InvalidError:
            return None  # The model of an earlier run was deleted since.

    runs = [*measurements.load_reference_runs(db), *reference_runs.load_recent(db)]
    readings = [*measurements.load_readings(db)]
    return EstimateInputs(
        runs,
        find,
        readings,
        reference_runs.make_finder(db),
        partial(_fit_to_data, db),
        partial(judge_memory.load, db),
    )


def _fit_to_data(db: Session, recipe: AnyRecipe) -> AnyRecipe:
    if not recipe.extra_sequences:
        return recipe
    answers = versions.require(db, recipe.dataset).answers
    # Data that is not counted yet may have as many as the recipe allows.
    most = recipe.negatives if answers is None else answers.get("negatives", recipe.negatives)
    return recipe.with_negatives(most)


def estimate_recipe(
    db: Session, recipe: AnyRecipe, inputs: EstimateInputs | None = None
) -> RunEstimate:
    """Estimate the memory and time a recipe needs.

    Raises:
        InvalidError: the model or dataset does not exist.

    """
    inputs = inputs or load_inputs(db)
    similar_runs = reference_runs.find_similar(inputs.reference_runs, recipe)
    same_memory_run = reference_runs.find_same_memory(inputs.reference_runs, recipe)
    data = versions.require(db, recipe.dataset)
    facts = recommendation.load_model_facts(db, recipe.base_model)
    return RunEstimate(
        memory=best_memory_estimate(db, recipe, facts, inputs),
        timing=run_duration.estimate_time(recipe, data, inputs.lengths(recipe), similar_runs),
        measured=same_memory_run.peak_bytes if same_memory_run else None,
    )


def best_memory_estimate(
    db: Session, recipe: AnyRecipe, facts: ModelFacts, inputs: EstimateInputs
) -> MemoryEstimate | None:
    """Return the best memory estimate: from a dry run, else from the formula."""
    return dry_run_estimate(db, recipe, facts, inputs) or formula_estimate(recipe, facts, inputs)


def dry_run_estimate(
    db: Session, recipe: AnyRecipe, facts: ModelFacts, inputs: EstimateInputs
) -> MemoryEstimate | None:
    """Return the memory as counted by a dry run; None without one."""
    # Without any dry run, skip hashing the recipe to look for one.
    estimate = measurements.estimate_memory(db, recipe, facts) if inputs.readings else None
    if estimate is None:
        return None
    closed = formula_estimate(recipe, facts, inputs)
    return MemoryEstimate(
        estimate=estimate,
        correction=Correction(),
        room=detect().usable_memory_bytes,
        overhead_bytes=_overhead_bytes(),
        knows_lengths=True,
        is_exact=True,
        formula_total=closed.total if closed else None,
        host=host_memory.estimate(
            recipe,
            facts,
            _batch_shape(inputs.fit(recipe), inputs.lengths(recipe)),
            detect(),
            inputs.teacher_facts(recipe),
        ),
    )


def formula_correction(
    db: Session, recipe: AnyRecipe, facts: ModelFacts, inputs: EstimateInputs
) -> Correction:
    """Return the correction of the formula for similar recipes, preferably from a dry run."""
    exact, closed = (
        dry_run_estimate(db, recipe, facts, inputs),
        formula_estimate(recipe, facts, inputs, Correction()),
    )
    if exact is None or closed is None:
        return inputs.correction_for(recipe)
    return Correction(factor=exact.total / closed.total)


def formula_estimate(
    recipe: AnyRecipe,
    facts: ModelFacts,
    inputs: EstimateInputs,
    correction: Correction | None = None,
) -> MemoryEstimate | None:
    """Return the formula's memory estimate, with a given correction or that of earlier runs."""
    lengths, hardware = inputs.lengths(recipe), detect()
    recipe = inputs.fit(recipe)
    on_gpu, batch = hardware.device != "cpu", _batch_shape(recipe, lengths)
    teacher = inputs.teacher_facts(recipe)
    estimate = memory.estimate(
        recipe, facts, batch, on_gpu=on_gpu, teacher=teacher, judges=inputs.judges(recipe)
    )
    if estimate is None:
        return None
    return MemoryEstimate(
        estimate=estimate,
        correction=correction or inputs.correction_for(recipe),
        room=hardware.usable_memory_bytes,
        overhead_bytes=_overhead_bytes(),
        knows_lengths=lengths is not None,
        host=host_memory.estimate(recipe, facts, batch, hardware, teacher),
        assumptions=tuple(list_assumptions(recipe, facts, on_gpu=on_gpu)),
    )


def list_assumptions(recipe: AnyRecipe, facts: ModelFacts, *, on_gpu: bool) -> Iterator[str]:
    """Yield assumptions of the formula beyond those of every estimate; none for plain recipes."""
    row, mode = recipe.adapter.quantised, PRECISIONS[recipe.precision]
    if row is not None:
        yield (
            f"Assumes linear layers in {row.title} with their scales and everything else in "
            f"{number_formats.weight_dtype(recipe, facts)}; products widen one weight at a time."
        )
    if activation_memory.emulates_bfloat16(recipe):
        yield EMULATED
    if mode.is_float8:
        yield EIGHT_BITS
    if on_gpu and (
        row is not None or activation_memory.emulates_bfloat16(recipe) or mode.is_float8
    ):
        yield UNMEASURED


def estimate_record(db: Session, recipe: AnyRecipe) -> dict[str, Any]:
    """Return an estimate as stored with a run."""
    estimate = estimate_recipe(db, recipe)
    record: dict[str, Any] = {"timing": asdict(estimate.timing)}
    if estimate.memory is not None:
        record["memory"] = {
            "total": estimate.memory.total,
            "parts": estimate.memory.estimate.parts,
            "length": estimate.memory.estimate.length,
            "factor": estimate.memory.correction.factor,
            "verdict": estimate.memory.verdict,
        }
    return record


def measure_error(run: Run) -> EstimateError:
    """Compare a finished run's estimates with its measurements."""
    measured_seconds = run_progress.measure(run).total_seconds if not run.resumed_step else None
    measured_bytes = memory.measured_peak(run)
    estimated_bytes = run.estimate.get("memory", {}).get("total")
    estimated_seconds = run.estimate.get("timing", {}).get("seconds")
    return EstimateError(
        run=run,
        memory=_relative_error(estimated_bytes, measured_bytes),
        seconds=_relative_error(estimated_seconds, measured_seconds)
        if run.step == run.total_steps
        else None,
        measured_bytes=measured_bytes,
        measured_seconds=measured_seconds,
    )


def list_errors(db: Session, model: str | None = None) -> list[EstimateError]:
    """Return the estimation errors of all finished runs, or those of one model, newest first."""
    query = select(Run).where(Run.status == RunStatus.SUCCEEDED).order_by(col(Run.id).desc())
    errors = [
        measure_error(run) for run in db.exec(query) if model in (None, run.recipe.base_model)
    ]
    return [error for error in errors if error.memory is not None or error.seconds is not None]


def median_error(errors: Sequence[EstimateError]) -> MedianError:
    """Return the median absolute errors, without runs that are too small to compare."""
    memory_off = [
        abs(error.memory)
        for error in errors
        if error.memory is not None and (error.measured_bytes or 0) >= MIN_COMPARED_BYTES
    ]
    seconds_off = [
        abs(error.seconds)
        for error in errors
        if error.seconds is not None and (error.measured_seconds or 0) >= MIN_COMPARED_SECONDS
    ]
    compared = len(memory_off) + len(seconds_off)
    return MedianError(
        memory=statistics.median(memory_off) if memory_off else None,
        seconds=statistics.median(seconds_off) if seconds_off else None,
        excludes_some=compared
        < sum((error.memory is not None) + (error.seconds is not None) for error in errors),
    )


def _overhead_bytes() -> int:
    return HOST_OVERHEAD_BYTES if detect().device == "cpu" else GPU_OVERHEAD_BYTES


def _batch_shape(recipe: AnyRecipe, lengths: TokenLengths | None) -> BatchShape:
    if lengths is None:
        return memory.batch_shape(recipe, {})
    rows = min(recipe.optimisation.per_device_train_batch_size, lengths.examples)
    batch = memory.sequences_at_a_time(recipe, rows)
    row_stats = (lengths.rows, lengths.row_tokens)
    length, answer = lengths.longest + recipe.answer_tokens, recipe.answer_tokens or lengths.answer
    return BatchShape(batch, length, answer, *row_stats, is_packed=recipe.data.packing)


def _relative_error(estimated: float | None, measured: float | None) -> float | None:
    return estimated / measured - 1 if estimated and measured else None
