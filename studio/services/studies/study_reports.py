"""Reports of precision studies: load the runs' data and compare it with `study_statistics`."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Literal

from sqlmodel import Session, col, select

from studio.db.states import RunStatus
from studio.db.tables import Metric, Run, RunEvent, Study
from studio.services.compare import compare
from studio.services.estimates import memory
from studio.services.estimates.memory import MemoryBreakdown
from studio.services.metrics import metrics
from studio.services.metrics.metrics import Series
from studio.services.runs import runs
from studio.services.samples import sample_diff
from studio.services.studies import studies, study_statistics
from studio.services.studies.study_statistics import MIN_SEEDS, REFERENCE, PrecisionResult, StudyRun

IncidentKind = Literal["alarm", "skipped", "broken"]

_MAX_COLUMNS = 200
"""Most columns of a timeline's axis."""
_MAX_SPELLS = 100
"""Most intervals of one kind in a run; closer steps are joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """An incident at a step, or the same kind over an interval of steps."""

    precision: str
    seed: int
    run_id: int
    kind: IncidentKind
    first: int
    last: int
    count: int = 1
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    steps: int
    """Steps of the longest run, as far as known."""
    incidents: list[Incident]
    """Sorted by step."""

    @property
    def edges(self) -> list[int]:
        """Steps at the edges of equal columns, for an axis; empty with fewer than two steps."""
        columns = min(self.steps, _MAX_COLUMNS)
        if columns < 2:  # noqa: PLR2004 -- nothing to look at more closely
            return []
        return [
            min(self.steps, 1 + column * self.steps // columns) for column in range(columns + 1)
        ]


def build_timeline(db: Session, study_runs: Sequence[Run]) -> Timeline:
    """Collect the numerical issues of runs, by step."""
    by_id = {run.id or 0: run for run in study_runs}
    steps = max((run.total_steps or run.step for run in study_runs), default=0)
    incidents = [
        *_load_alarms(db, by_id),
        *_find_skipped_steps(db, by_id),
        *_find_broken_steps(db, by_id),
    ]
    gap = max(1, steps // _MAX_SPELLS)
    return Timeline(steps=steps, incidents=sorted(_join_spells(incidents, gap), key=_sort_key))


def _load_alarms(db: Session, by_id: dict[int, Run]) -> Iterator[Incident]:
    query = select(RunEvent).where(col(RunEvent.run_id).in_(by_id), *runs.alarm_conditions())
    for event in db.exec(query.order_by(col(RunEvent.id))):
        yield _incident_at(
            by_id[event.run_id], "alarm", event.data["step"], text=event.data["message"]
        )


def _find_skipped_steps(db: Session, by_id: dict[int, Run]) -> Iterator[Incident]:
    """Yield the steps where the count of skipped steps increased, and by how much."""
    before: dict[int, float] = {}
    for metric in _load_metrics(db, by_id, "skipped_steps"):
        now = metric.value or 0
        risen = round(now - before.get(metric.run_id, 0))
        before[metric.run_id] = now
        if risen > 0:
            yield _incident_at(by_id[metric.run_id], "skipped", metric.step, count=risen)


def _find_broken_steps(db: Session, by_id: dict[int, Run]) -> Iterator[Incident]:
    for metric in _load_metrics(db, by_id, "loss", broken=True):
        yield _incident_at(by_id[metric.run_id], "broken", metric.step)


def _load_metrics(
    db: Session, by_id: dict[int, Run], key: str, *, broken: bool = False
) -> Sequence[Metric]:
    query = select(Metric).where(col(Metric.run_id).in_(by_id), Metric.key == key)
    if broken:
        query = query.where(Metric.non_finite != "")
    return db.exec(query.order_by(col(Metric.run_id), col(Metric.step))).all()


def _incident_at(
    run: Run, kind: IncidentKind, step: int, *, count: int = 1, text: str = ""
) -> Incident:
    return Incident(
        precision=run.recipe.precision,
        seed=run.recipe.optimisation.seed,
        run_id=run.id or 0,
        kind=kind,
        first=step,
        last=step,
        count=count,
        text=text,
    )


def _join_spells(incidents: Iterable[Incident], gap: int) -> list[Incident]:
    """Join incidents of one kind within a gap, except alerts, which differ in their text."""
    joined: list[Incident] = []
    for incident in incidents:
        before = joined[-1] if joined else None
        if before and incident.kind != "alarm" and _continues(before, incident, gap):
            joined[-1] = replace(before, last=incident.last, count=before.count + incident.count)
        else:
            joined.append(incident)
    return joined


def _continues(before: Incident, incident: Incident, gap: int) -> bool:
    same = (before.kind, before.run_id) == (incident.kind, incident.run_id)
    return same and incident.first - before.last <= gap


def _sort_key(incident: Incident) -> tuple[int, int]:
    return incident.first, incident.run_id


IncidentCounts = Counter[tuple[int, IncidentKind]]
"""Number of incidents by run and kind."""
CurvesByMode = Mapping[tuple[str, int], Series]
"""A metric by precision and seed, all on one x axis."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class GapCurves:
    """The gap of one metric to the reference by step, for each precision."""

    x: list[float]
    series: dict[str, Series]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerComparison:
    """The answers of the runs of one seed to the same prompts."""

    seed: int
    prompts: int
    differing: list[sample_diff.AnswerDiff]
    by_mode: dict[str, int]
    """Number of prompts that each precision answered differently from the reference."""
    right: dict[str, sample_diff.AnswerScore]
    """Scores by precision, the reference first; empty if the dataset expects no answers."""
    between_seeds: int | None
    """Number of prompts answered differently by two runs of the reference that differ in seed only.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyReport:
    study: Study
    runs: Sequence[Run]
    """In the order in which they were queued."""
    findings: list[PrecisionResult]
    curves: dict[str, GapCurves]
    answers: AnswerComparison | None
    timeline: Timeline
    devices: list[str]
    """Devices the runs trained on; speeds of different devices are not comparable."""

    @property
    def going(self) -> int:
        return sum(not run.status.is_final for run in self.runs)


def build_report(db: Session, study_id: int) -> StudyReport:
    """Build the report of a study from its runs so far."""
    study, study_runs = studies.get(db, study_id), studies.list_runs(db, study_id)
    ids = [run.id or 0 for run in study_runs]
    curves_by_key = {key: metrics.load_curves(db, ids, [key]) for key in ("eval_loss", "loss")}
    timeline = build_timeline(db, study_runs)
    counts: IncidentCounts = Counter()
    for incident in timeline.incidents:
        counts[incident.run_id, incident.kind] += incident.count
    trials = [
        _study_run(run, curves_by_key["eval_loss"], counts, _memory_estimate(db, run))
        for run in study_runs
    ]
    return StudyReport(
        study=study,
        runs=study_runs,
        findings=study_statistics.compare_precisions(trials),
        curves={key: _gap_curves(study_runs, key, curves) for key, curves in curves_by_key.items()},
        answers=_compare_answers(db, study_runs),
        timeline=timeline,
        devices=sorted(
            {str(name) for run in study_runs if (name := run.resolved.get("device_name"))}
        ),
    )


def compute_gaps(lines: CurvesByMode) -> dict[str, Series]:
    """Return for each precision the mean, smallest and largest gap over its seeds.

    The reference is zero, with a band of one standard deviation of its own seeds.
    """
    modes = dict.fromkeys(mode for mode, _seed in lines if mode != REFERENCE)
    gaps = {mode: _mode_gap(lines, mode) for mode in modes}
    reference = [line for (mode, _seed), line in lines.items() if mode == REFERENCE]
    return {REFERENCE: _noise_band(reference)} | gaps if reference else {}


def _study_run(
    run: Run, curves: metrics.Curves, counts: IncidentCounts, estimate: MemoryBreakdown | None
) -> StudyRun:
    series = curves.series.get((run.id or 0, "eval_loss"))
    points = zip(curves.x, series.mean, strict=True) if series else ()
    validations = {round(step): value for step, value in points if value is not None}
    validations |= {round(step): math.nan for step in (series.non_finite if series else ())}
    return StudyRun(
        precision=run.recipe.precision,
        seed=run.recipe.optimisation.seed,
        state=_STATES[run.status],
        final=run.metrics.get("eval_loss") if run.status is RunStatus.SUCCEEDED else None,
        validations=validations,
        tokens_per_second=run.metrics.get("tokens_per_second"),
        peak_memory_bytes=run.metrics.get("peak_memory_bytes"),
        estimated_bytes=estimate.total if estimate else None,
        skipped_steps=_to_int(run.metrics.get("skipped_steps", 0)),
        broken_steps=counts[run.id or 0, "broken"],
        alarms=counts[run.id or 0, "alarm"],
    )


def _memory_estimate(db: Session, run: Run) -> MemoryBreakdown | None:
    """Return the estimate, unless the peak was measured as older versions did, with libraries."""
    has_measured = "peak_memory_bytes" in run.metrics
    return (
        None if has_measured and not memory.measured_peak(run) else memory.estimate_for_run(db, run)
    )


def _to_int(value: float) -> int:
    return round(value) if math.isfinite(value) else 0


def _gap_curves(study_runs: Sequence[Run], key: str, curves: metrics.Curves) -> GapCurves:
    lines: dict[tuple[str, int], Series] = {
        (run.recipe.precision, run.recipe.optimisation.seed): curves.series[run.id or 0, key]
        for run in study_runs
        if (run.id or 0, key) in curves.series
    }
    return GapCurves(x=curves.x, series=compute_gaps(lines))


def _compare_answers(db: Session, study_runs: Sequence[Run]) -> AnswerComparison | None:
    """Compare the answers of the first seed for which the reference has some."""
    answers_by_run = _answers_by_run(db, study_runs)
    seeds = sorted(seed for mode, seed in answers_by_run if mode == REFERENCE)
    if not seeds:
        return None
    first = seeds[0]
    own = answers_by_run[REFERENCE, first]
    others = {mode: answers for (mode, seed), answers in answers_by_run.items() if seed == first}
    others.pop(REFERENCE)
    tallies = {
        mode: sample_diff.score_answers(one) for mode, one in ({REFERENCE: own} | others).items()
    }
    return AnswerComparison(
        seed=first,
        prompts=len(own),
        differing=sample_diff.diff_answers(own, others),
        by_mode={
            mode: sample_diff.count_differing(own, answers) for mode, answers in others.items()
        },
        right={mode: one for mode, one in tallies.items() if one.judged},
        between_seeds=sample_diff.count_differing(own, answers_by_run[REFERENCE, seeds[1]])
        if len(seeds) > 1
        else None,
    )


def _answers_by_run(
    db: Session, study_runs: Sequence[Run]
) -> Mapping[tuple[str, int], sample_diff.AnswersByPrompt]:
    """Return the answers after training, by precision and seed, then by prompt."""
    keys_by_run = {
        run.id: (run.recipe.precision, run.recipe.optimisation.seed) for run in study_runs
    }
    answers_by_run: dict[tuple[str, int], dict[int, sample_diff.SampleAnswer]] = {}
    for sample in compare.list_samples(db, [run.id or 0 for run in study_runs]):
        if sample.stage == "after":
            answer = sample_diff.SampleAnswer(
                prompt=sample.prompt, wanted=sample.reference, answer=sample.answer
            )
            answers_by_run.setdefault(keys_by_run[sample.run_id], {})[sample.position] = answer
    return answers_by_run


def _mode_gap(lines: CurvesByMode, mode: str) -> Series:
    own = {seed: line for (name, seed), line in lines.items() if name == mode}
    pairs = [
        (line.mean, lines[REFERENCE, seed].mean)
        for seed, line in own.items()
        if (REFERENCE, seed) in lines
    ]
    columns = zip(*(_differences(*pair) for pair in pairs), strict=True)
    finite = [[gap for gap in column if gap is not None] for column in columns]
    return Series(
        mean=[fmean(column) if column else None for column in finite],
        min=[min(column, default=None) for column in finite],
        max=[max(column, default=None) for column in finite],
        non_finite=sorted({place for line in own.values() for place in line.non_finite}),
    )


def _noise_band(reference: Sequence[Series]) -> Series:
    columns = zip(*(line.mean for line in reference), strict=True)
    finite = [[value for value in column if value is not None] for column in columns]
    spreads = [stdev(column) if len(column) >= MIN_SEEDS else None for column in finite]
    return Series(
        mean=[0.0 if column else None for column in finite],
        min=[None if spread is None else -spread for spread in spreads],
        max=spreads,
        non_finite=sorted({place for line in reference for place in line.non_finite}),
    )


def _differences(
    mine: Sequence[float | None], theirs: Sequence[float | None]
) -> list[float | None]:
    return [
        a - b if a is not None and b is not None and math.isfinite(a - b) else None
        for a, b in zip(mine, theirs, strict=True)
    ]
