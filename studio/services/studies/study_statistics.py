"""Statistics of precision studies: runs in, comparisons out; pure functions.

Precisions are compared by pairs of runs with the same seed, which read the same rows in the same
order. The remaining difference is compared with the seed noise: how far the reference's own runs
scatter when only the seed differs.

    gap        mean over the seeds of (a precision's validation loss - the reference's)
    noise      standard deviation of the reference's validation loss over its seeds
    lost       1 - (start - end of the precision) / (start - end of the reference)

While runs continue, everything is computed at the last step that all compared runs have reached.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from operator import sub
from statistics import fmean, stdev
from typing import Literal

State = Literal["waiting", "going", "done", "failed", "cancelled"]
GapVerdict = Literal["reference", "nothing", "unknown", "within", "above", "below"]

REFERENCE = "fp32"
"""The precision that the others are compared with."""

MIN_SEEDS = 2
"""Fewest seeds for a standard deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRun:
    """A run of a study, finished or not."""

    precision: str
    seed: int
    state: State
    final: float | None = None
    """Validation loss of the finished run."""
    validations: Mapping[int, float] = field(default_factory=dict)
    """Validation loss by step; NaN where it was not finite."""
    tokens_per_second: float | None = None
    peak_memory_bytes: float | None = None
    estimated_bytes: float | None = None
    """The estimated peak, where it is comparable with the measured one."""
    skipped_steps: int = 0
    broken_steps: int = 0
    """Steps with a non-finite training loss."""
    alarms: int = 0

    @property
    def has_no_result(self) -> bool:
        """Whether it ended without a result."""
        return self.state in {"failed", "cancelled"}

    def loss_at(self, step: int | None) -> float | None:
        """Return the validation loss at a step, or at the end of a finished run."""
        if self.has_no_result:
            return None
        return self.final if step is None else self.validations.get(step)


@dataclass(frozen=True, slots=True)
class SampleStats:
    """Statistics of `n` finite values; runs without a finite value are not counted."""

    mean: float
    spread: float | None
    """Standard deviation; None for a single value."""
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionResult:
    """The results of one precision."""

    precision: str
    states: Mapping[State, int]
    step: int | None
    """The step at which losses were compared; None for the end."""
    loss: SampleStats | None
    gap: SampleStats | None
    noise: SampleStats | None
    """The reference's loss at that step: its spread is the seed noise."""
    versus: GapVerdict
    lost: float | None
    """Share of the reference's improvement; None if that or the gap is within the noise."""
    lost_since: int | None
    """Step of the first validation, from which improvement is measured."""
    not_finite: int
    """Runs whose validation loss was not finite at that step."""
    speed: SampleStats | None
    """Over finished runs; before any has finished, over running ones."""
    speed_ratio: SampleStats | None
    """Seed by seed, so that its spread shows when the machine was busy."""
    memory: float | None
    """Largest peak of these runs."""
    memory_ratio: float | None
    memory_estimate: float | None
    """Largest estimate of these runs."""
    skipped_steps: int
    broken_steps: int
    alarms: int

    @property
    def runs(self) -> int:
        return sum(self.states.values())

    @property
    def failed(self) -> int:
        return self.states.get("failed", 0)

    @property
    def cancelled(self) -> int:
        return self.states.get("cancelled", 0)


def compare_precisions(trials: Sequence[StudyRun]) -> list[PrecisionResult]:
    """Return the results of each precision, in the order of the runs; the reference first."""
    modes = dict.fromkeys(trial.precision for trial in trials)
    ordered = sorted(modes, key=lambda mode: mode != REFERENCE)
    by_mode = {mode: [run for run in trials if run.precision == mode] for mode in ordered}
    return [
        _precision_result(mode, own, by_mode.get(REFERENCE, ())) for mode, own in by_mode.items()
    ]


def summarise(values: Iterable[float | None]) -> SampleStats | None:
    """Return statistics of the finite values; None if there are none."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return None
    return SampleStats(
        fmean(finite), stdev(finite) if len(finite) >= MIN_SEEDS else None, len(finite)
    )


def judge_gap(gap: SampleStats | None, noise: SampleStats | None) -> GapVerdict:
    """Compare a gap with the seed noise; unknown unless both have at least two seeds."""
    if gap is None:
        return "nothing"
    if noise is None or noise.spread is None or gap.n < MIN_SEEDS:
        return "unknown"
    if abs(gap.mean) <= noise.spread:
        return "within"
    return "above" if gap.mean > 0 else "below"


def improvement_lost(
    starts: Sequence[tuple[float, float]], ends: Sequence[tuple[float, float]], noise: float
) -> float | None:
    """Return the share of the reference's improvement that a precision lost.

    Pairs are (precision, reference). None if the reference improved by no more than the noise.
    """
    if not starts or not ends:
        return None
    began, began_ref = (fmean(side) for side in zip(*starts, strict=True))
    ended, ended_ref = (fmean(side) for side in zip(*ends, strict=True))
    if not began_ref - ended_ref > noise:
        return None
    return 1 - (began - ended) / (began_ref - ended_ref)


def pair_by_seed(
    own: Sequence[StudyRun], reference: Sequence[StudyRun]
) -> list[tuple[StudyRun, StudyRun]]:
    """Pair each run with the reference's run of the same seed; skip runs without a result."""
    by_seed = {trial.seed: trial for trial in reference if not trial.has_no_result}
    return [
        (trial, by_seed[trial.seed])
        for trial in own
        if not trial.has_no_result and trial.seed in by_seed
    ]


def comparison_step(trials: Sequence[StudyRun]) -> int | None:
    """Return the step at which runs can be compared: None, the end, if any is done."""
    if any(trial.state == "done" for trial in trials):
        return None
    return _last_common_step([trial for trial in trials if trial.validations])


def _precision_result(
    mode: str, own: Sequence[StudyRun], reference: Sequence[StudyRun]
) -> PrecisionResult:
    compared = _comparable_pairs(pair_by_seed(own, reference))
    step = _step_of_pairs(compared) if compared else comparison_step(own)
    gap = summarise(starmap(sub, _paired_losses(compared, step)))
    noise = summarise(trial.loss_at(step) for trial in reference)
    since = _first_common_step([trial for pair in compared for trial in pair])
    memory = _peak_memory(_measured_runs(own))
    is_reference = mode == REFERENCE
    judged = "reference" if is_reference else judge_gap(gap, noise)
    # Start and end must be of the same runs: exclude runs whose loss became NaN in between.
    complete_pairs = [
        pair for pair in compared if _paired_losses([pair], since) and _paired_losses([pair], step)
    ]
    improved = (
        _paired_losses(complete_pairs, since),
        _paired_losses(complete_pairs, step),
        (noise and noise.spread) or 0,
    )
    return PrecisionResult(
        precision=mode,
        states=Counter(trial.state for trial in own),
        step=step,
        loss=summarise(trial.loss_at(step) for trial in own),
        gap=None if is_reference else gap,
        noise=noise,
        versus=judged,
        lost=None
        if since is None or judged in {"reference", "within"}
        else improvement_lost(*improved),
        lost_since=since,
        not_finite=sum(_is_non_finite(trial.loss_at(step)) for trial in own),
        speed=summarise(trial.tokens_per_second for trial in _measured_runs(own)),
        speed_ratio=None if is_reference else summarise(starmap(_speed_ratio, compared)),
        memory=memory,
        memory_ratio=None
        if is_reference
        else _ratio(memory, _peak_memory(_measured_runs(reference))),
        memory_estimate=max(
            (run.estimated_bytes for run in own if run.estimated_bytes is not None), default=None
        ),
        skipped_steps=sum(trial.skipped_steps for trial in own),
        broken_steps=sum(trial.broken_steps for trial in own),
        alarms=sum(trial.alarms for trial in own),
    )


def _comparable_pairs(
    pairs: Sequence[tuple[StudyRun, StudyRun]],
) -> list[tuple[StudyRun, StudyRun]]:
    """Return the finished pairs; before any has finished, those that share a validated step."""
    done = [pair for pair in pairs if all(trial.state == "done" for trial in pair)]
    return done or [pair for pair in pairs if _last_common_step(pair) is not None]


def _step_of_pairs(compared: Sequence[tuple[StudyRun, StudyRun]]) -> int | None:
    flat = [trial for pair in compared for trial in pair]
    return None if all(trial.state == "done" for trial in flat) else _last_common_step(flat)


def _paired_losses(
    compared: Sequence[tuple[StudyRun, StudyRun]], step: int | None
) -> list[tuple[float, float]]:
    """Return the finite losses of each pair at a step; skip pairs with a non-finite one."""
    losses = [(mode.loss_at(step), reference.loss_at(step)) for mode, reference in compared]
    return [
        (mine, theirs)
        for mine, theirs in losses
        if mine is not None and theirs is not None and math.isfinite(mine - theirs)
    ]


def _common_steps(trials: Sequence[StudyRun]) -> set[int]:
    return set.intersection(*(set(trial.validations) for trial in trials)) if trials else set()


def _last_common_step(trials: Sequence[StudyRun]) -> int | None:
    return max(_common_steps(trials), default=None)


def _first_common_step(trials: Sequence[StudyRun]) -> int | None:
    return min(_common_steps(trials), default=None)


def _measured_runs(trials: Sequence[StudyRun]) -> list[StudyRun]:
    """Return the finished runs; before any has finished, the running ones."""
    for state in ("done", "going"):
        if matching := [trial for trial in trials if trial.state == state]:
            return matching
    return []


def _speed_ratio(mine: StudyRun, theirs: StudyRun) -> float | None:
    return _ratio(mine.tokens_per_second, theirs.tokens_per_second)


def _peak_memory(trials: Sequence[StudyRun]) -> float | None:
    return max(
        (trial.peak_memory_bytes for trial in trials if trial.peak_memory_bytes is not None),
        default=None,
    )


def _ratio(mine: float | None, theirs: float | None) -> float | None:
    return mine / theirs if mine is not None and theirs else None


def _is_non_finite(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)
