"""What a recipe will need of this machine before it runs: memory and time, and how sure that is.

Estimates are held to what runs then measured. A machine's own median error, once three runs have
shown it, corrects the next estimate; the one a run was submitted with stays as it was.
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
from studio.services.estimates.activation_memory import Load
from studio.services.estimates.memory import Estimate
from studio.services.estimates.memory_fit import Host, Verdict
from studio.services.estimates.reference_runs import Lengths, Precedent, Reading
from studio.services.estimates.run_duration import Timing
from studio.services.precision import recommendation
from studio.weights.model_facts import ModelFacts

Find = Callable[[str], ModelFacts | None]

BESIDE_HOST, BESIDE_GPU = 400_000_000, 500_000_000
"""Bytes that are not a run's own: the training packages on a host, the driver on a GPU."""

_ENOUGH = 3
"""Runs whose median error is believed."""
_LEAST_FACTOR, _MOST_FACTOR = 0.5, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """How far estimates have missed on this machine: measured over estimated."""

    factor: float = 1.0
    runs: int = 0
    """How many told so; it takes three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """Memory: by part, corrected by what was learnt, and against what is there."""

    estimate: Estimate
    learnt: Learnt
    room: int
    """Bytes of the GPU, or of the host."""
    beside: int
    knows_lengths: bool
    """Whether the data have been read; else every example counts as the longest allowed."""
    is_exact: bool = False
    """Whether a dry run has counted it; else it is the closed form."""
    closed: int | None = None
    """What the closed form says where a dry run knows better; None of a model it does not know."""
    host: Host | None = None
    """What a run on a GPU needs of the host; None where the host is the device."""
    assumed: tuple[str, ...] = ()
    """What it takes for granted, in sentences."""

    @property
    def total(self) -> int:
        return round(self.estimate.total * self.learnt.factor)

    @property
    def device(self) -> Verdict:
        """Return how it stands with the device alone."""
        return memory_fit.judged(self.total + self.beside, self.room)

    @property
    def verdict(self) -> Verdict:
        """Return the worse of what device and host say."""
        return memory_fit.worst(self.device, self.host.verdict if self.host else "fits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    memory: Needed | None
    """None where nobody has counted what the model's layers keep."""
    timing: Timing
    measured: float | None
    """The peak of an earlier run or calibration whose steps were as full, if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """How far estimates were off, as shares of what was measured; None without any."""

    memory: float | None
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """A finished run: estimated when it was submitted, measured when it was done."""

    run: Run
    memory: float | None
    """How far the estimate was off, as a share of what was measured; above zero was too much."""
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Known:
    """What estimates of one moment go by; read once, for many recipes."""

    precedents: Sequence[Precedent]
    find: Find
    readings: Sequence[Reading] = ()
    count: Callable[[AnyRecipe], Lengths | None] = lambda _recipe: None
    """What was counted of a recipe's rows, though no run has read them."""

    def lengths(self, recipe: AnyRecipe) -> Lengths | None:
        read = reference_runs.lengths(chain(self.precedents, self.readings), recipe)
        return read or self.count(recipe)

    def learnt(self, recipe: AnyRecipe) -> Learnt:
        """Learn from runs in the same precision with such an adapter: others err otherwise."""
        kind = (recipe.precision, recipe.adapter.kind)
        ratios = [
            one.peak_bytes / guess.total
            for one in self.precedents
            if (one.recipe.precision, one.recipe.adapter.kind) == kind
            if one.peak_bytes and (guess := self._again(one)) is not None
        ]
        if len(ratios) < _ENOUGH:
            return Learnt()
        factor = min(max(statistics.median(ratios), _LEAST_FACTOR), _MOST_FACTOR)
        return Learnt(factor=factor, runs=len(ratios))

    def _again(self, one: Precedent) -> Estimate | None:
        """Work an earlier run out as it would be today, by the lengths that it found."""
        facts = self.find(one.recipe.base_model)
        return memory.of_told(one.recipe, facts, one.told) if facts else None


def known(db: Session) -> Known:
    """Read what estimates go by."""

    @cache
    def find(name: str) -> ModelFacts | None:
        try:
            return recommendation.facts_of(db, name)
        except InvalidError:
            return None  # The model of an earlier run has gone since.

    seen = [*calibrations.precedents(db), *reference_runs.newest(db)]
    return Known(seen, find, [*dry_runs.readings(db)], token_lengths.finder(db))


def of(db: Session, recipe: AnyRecipe, by: Known | None = None) -> Estimated:
    """Estimate what a recipe will need.

    Raises:
        InvalidError: there is no such model or data set.

    """
    by = by or known(db)
    alike = reference_runs.like(by.precedents, recipe)
    twin = reference_runs.twin(by.precedents, recipe)
    data = versions.require(db, recipe.dataset)
    facts = recommendation.facts_of(db, recipe.base_model)
    return Estimated(
        memory=best(db, recipe, facts, by),
        timing=run_duration.of(recipe, data, by.lengths(recipe), alike),
        measured=twin.peak_bytes if twin else None,
    )


def best(db: Session, recipe: AnyRecipe, facts: ModelFacts, by: Known) -> Needed | None:
    """Return the memory as well as it is known: counted, else by the closed form."""
    return counted(db, recipe, facts, by) or needed(recipe, facts, by)


def counted(db: Session, recipe: AnyRecipe, facts: ModelFacts, by: Known) -> Needed | None:
    """Return the memory as a dry run has counted it; None if there was none."""
    # Where none was ever made, none need be looked for by the hash of all that decides it.
    estimate = dry_runs.estimate(db, recipe, facts) if by.readings else None
    if estimate is None:
        return None
    closed = needed(recipe, facts, by)
    return Needed(
        estimate=estimate,
        learnt=Learnt(),
        room=detect().room_bytes,
        beside=_beside(),
        knows_lengths=True,
        is_exact=True,
        closed=closed.total if closed else None,
        host=memory_fit.host(recipe, facts, _load(recipe, by.lengths(recipe)), detect()),
    )


def missed(db: Session, recipe: AnyRecipe, facts: ModelFacts, by: Known) -> Learnt:
    """Return how far the closed form misses recipes like this one: a dry run shows it best."""
    exact, closed = counted(db, recipe, facts, by), needed(recipe, facts, by, Learnt())
    if exact is None or closed is None:
        return by.learnt(recipe)
    return Learnt(factor=exact.total / closed.total)


def needed(
    recipe: AnyRecipe, facts: ModelFacts, by: Known, learnt: Learnt | None = None
) -> Needed | None:
    """Return the memory alone; what was learnt need not be learnt again."""
    found, hardware = by.lengths(recipe), detect()
    on_gpu, load = hardware.device != "cpu", _load(recipe, found)
    estimate = memory.estimate(recipe, facts, load, on_gpu=on_gpu)
    if estimate is None:
        return None
    return Needed(
        estimate=estimate,
        learnt=learnt or by.learnt(recipe),
        room=hardware.room_bytes,
        beside=_beside(),
        knows_lengths=found is not None,
        host=memory_fit.host(recipe, facts, load, hardware),
        assumed=tuple(memory_assumptions.of(recipe, facts, on_gpu=on_gpu)),
    )


def keep(db: Session, recipe: AnyRecipe) -> dict[str, Any]:
    """Return an estimate as it is kept with a run, for good."""
    made = of(db, recipe)
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


def miss(run: Run) -> Miss:
    """Hold a finished run's estimate against what it measured."""
    took = run_progress.of(run).total_seconds if not run.resumed_step else None
    guess = run.estimate.get("memory", {}).get("total")
    seconds = run.estimate.get("timing", {}).get("seconds")
    return Miss(
        run=run,
        memory=_off(guess, memory.measured(run)),
        seconds=_off(seconds, took) if run.step == run.total_steps else None,
    )


def errors(db: Session, model: str | None = None) -> list[Miss]:
    """Return how estimates fared over all finished runs, or those of one model, newest first."""
    done = select(Run).where(Run.status == RunStatus.SUCCEEDED).order_by(col(Run.id).desc())
    found = [miss(run) for run in db.exec(done) if model in (None, run.recipe.base_model)]
    return [one for one in found if one.memory is not None or one.seconds is not None]


def median(misses: Sequence[Miss]) -> Missed:
    """Return how far estimates are off in the median, whichever way."""
    memory_off = [abs(one.memory) for one in misses if one.memory is not None]
    seconds_off = [abs(one.seconds) for one in misses if one.seconds is not None]
    return Missed(
        memory=statistics.median(memory_off) if memory_off else None,
        seconds=statistics.median(seconds_off) if seconds_off else None,
    )


def _beside() -> int:
    return BESIDE_HOST if detect().device == "cpu" else BESIDE_GPU


def _load(recipe: AnyRecipe, found: Lengths | None) -> Load:
    if found is None:
        return memory.load_of(recipe, {})
    batch = min(recipe.optimisation.per_device_train_batch_size, found.examples)
    rows = (found.rows, found.row_tokens)
    return Load(batch, found.longest, found.answer, *rows, is_packed=recipe.data.packing)


def _off(guess: float | None, found: float | None) -> float | None:
    return guess / found - 1 if guess and found else None
