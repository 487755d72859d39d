"""The report on a precision study: what its runs have told, gathered and handed to `evidence`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlmodel import Session, col, func, select

from studio.db.states import RunStatus
from studio.db.tables import Metric, Run, RunEvent, Study
from studio.services.compare import compare
from studio.services.estimates import memory
from studio.services.estimates.memory import Estimate
from studio.services.metrics import metrics
from studio.services.metrics.metrics import Series
from studio.services.runs import runs
from studio.services.samples import sample_diff
from studio.services.studies import incidents, loss_gaps, studies, study_statistics
from studio.services.studies.incidents import Timeline
from studio.services.studies.study_statistics import REFERENCE, Finding, Trial

_STATES: dict[RunStatus, study_statistics.State] = {
    RunStatus.QUEUED: "waiting",
    RunStatus.STARTING: "waiting",
    RunStatus.RUNNING: "going",
    RunStatus.STOPPING: "going",
    RunStatus.PAUSED: "waiting",
    RunStatus.SUCCEEDED: "done",
    RunStatus.FAILED: "failed",
    RunStatus.CANCELLED: "cancelled",
}


@dataclass(frozen=True, slots=True)
class Marks:
    """Of each run: how many steps had no finite training loss, and how many alarms it raised."""

    broken: Mapping[int, int]
    alarms: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """One metric's distance to the reference along the steps, by mode."""

    x: list[float]
    series: dict[str, Series]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What the runs of one seed wrote to the same prompts."""

    seed: int
    prompts: int
    differing: list[sample_diff.Row]
    by_mode: dict[str, int]
    """To how many prompts each mode wrote other words than the reference."""
    right: dict[str, sample_diff.Tally]
    """By mode, the reference first; nothing where the data set expects no answer."""
    between_seeds: int | None
    """To how many two runs of the reference did that differ in the seed alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    study: Study
    runs: Sequence[Run]
    """In the order in which they were queued."""
    findings: list[Finding]
    curves: dict[str, Gaps]
    answers: Answers | None
    timeline: Timeline
    devices: list[str]
    """Where the runs trained; speeds of several devices cannot be compared."""

    @property
    def going(self) -> int:
        return sum(not run.status.is_final for run in self.runs)


def of(db: Session, study_id: int) -> Report:
    """Gather what the runs of a study show so far."""
    study, made = studies.get(db, study_id), studies.runs_of(db, study_id)
    ids = [run.id or 0 for run in made]
    told = {key: metrics.curves(db, ids, [key]) for key in ("eval_loss", "loss")}
    marks = Marks(_broken(db, ids), _alarms(db, ids))
    trials = [_trial(run, told["eval_loss"], marks, _guess(db, run)) for run in made]
    return Report(
        study=study,
        runs=made,
        findings=study_statistics.findings(trials),
        curves={key: _gaps(made, key, found) for key, found in told.items()},
        answers=_answers(db, made),
        timeline=incidents.of(db, made),
        devices=sorted({str(name) for run in made if (name := run.resolved.get("device_name"))}),
    )


def _trial(run: Run, told: metrics.Curves, marks: Marks, guess: Estimate | None) -> Trial:
    series = told.series.get((run.id or 0, "eval_loss"))
    points = zip(told.x, series.mean, strict=True) if series else ()
    validations = {round(step): value for step, value in points if value is not None}
    validations |= {round(step): math.nan for step in (series.non_finite if series else ())}
    return Trial(
        precision=run.recipe.precision,
        seed=run.recipe.optimisation.seed,
        state=_STATES[run.status],
        final=run.metrics.get("eval_loss") if run.status is RunStatus.SUCCEEDED else None,
        validations=validations,
        tokens_per_second=run.metrics.get("tokens_per_second"),
        peak_memory_bytes=run.metrics.get("peak_memory_bytes"),
        estimated_bytes=guess.total if guess else None,
        skipped_steps=_whole(run.metrics.get("skipped_steps", 0)),
        broken_steps=marks.broken.get(run.id or 0, 0),
        alarms=marks.alarms.get(run.id or 0, 0),
    )


def _guess(db: Session, run: Run) -> Estimate | None:
    """Return what was estimated, unless it was measured with libraries and all, as once it was."""
    has_measured = "peak_memory_bytes" in run.metrics
    return None if has_measured and not memory.measured(run) else memory.of_run(db, run)


def _whole(value: float) -> int:
    return round(value) if math.isfinite(value) else 0


def _broken(db: Session, ids: Sequence[int]) -> dict[int, int]:
    """Return how many steps of each run had a training loss that was not finite."""
    query = (
        select(Metric.run_id, func.count())
        .where(col(Metric.run_id).in_(ids), Metric.key == "loss", Metric.non_finite != "")
        .group_by(col(Metric.run_id))
    )
    return dict(db.exec(query).all())


def _alarms(db: Session, ids: Sequence[int]) -> dict[int, int]:
    query = (
        select(RunEvent.run_id, func.count())
        .where(col(RunEvent.run_id).in_(ids), *runs.is_alarm())
        .group_by(col(RunEvent.run_id))
    )
    return dict(db.exec(query).all())


def _gaps(made: Sequence[Run], key: str, found: metrics.Curves) -> Gaps:
    lines: dict[tuple[str, int], Series] = {
        (run.recipe.precision, run.recipe.optimisation.seed): found.series[run.id or 0, key]
        for run in made
        if (run.id or 0, key) in found.series
    }
    return Gaps(x=found.x, series=loss_gaps.gaps(lines))


def _answers(db: Session, made: Sequence[Run]) -> Answers | None:
    """Lay the answers of the first seed beside each other for which the reference has some."""
    sheets = _sheets(db, made)
    seeds = sorted(seed for mode, seed in sheets if mode == REFERENCE)
    if not seeds:
        return None
    first = seeds[0]
    own = sheets[REFERENCE, first]
    others = {mode: sheet for (mode, seed), sheet in sheets.items() if seed == first}
    others.pop(REFERENCE)
    tallies = {
        mode: sample_diff.tally_sheet(one) for mode, one in ({REFERENCE: own} | others).items()
    }
    return Answers(
        seed=first,
        prompts=len(own),
        differing=sample_diff.differing(own, others),
        by_mode={mode: sample_diff.count(own, sheet) for mode, sheet in others.items()},
        right={mode: one for mode, one in tallies.items() if one.judged},
        between_seeds=sample_diff.count(own, sheets[REFERENCE, seeds[1]])
        if len(seeds) > 1
        else None,
    )


def _sheets(db: Session, made: Sequence[Run]) -> Mapping[tuple[str, int], sample_diff.Sheet]:
    """Return the answers after training, by mode and seed, then by prompt."""
    places = {run.id: (run.recipe.precision, run.recipe.optimisation.seed) for run in made}
    sheets: dict[tuple[str, int], dict[int, sample_diff.Written]] = {}
    for one in compare.samples(db, [run.id or 0 for run in made]):
        if one.stage == "after":
            written = sample_diff.Written(
                prompt=one.prompt, wanted=one.reference, answer=one.answer
            )
            sheets.setdefault(places[one.run_id], {})[one.position] = written
    return sheets
