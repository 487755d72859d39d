"""What ended since someone last looked: runs, and whole sweeps and precision studies.

Runs say what came out, or why they failed. The runs of a sweep or study are counted together, once
all of them have ended.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlmodel import Session, col, func, select

from studio.db.states import RunStatus, SweepStatus
from studio.db.summaries import MetricSummary
from studio.db.tables import Run, Study, Sweep
from studio.methods import METHODS
from studio.services.metrics import metric_summaries
from studio.services.runs import failure_report
from studio.services.runs.fixes import Fix
from studio.services.sweeps import sweep_preview, sweeps
from studio.services.sweeps.sweeps import Trial

MAX_LISTED = 5
_MAX_READ = 100
"""More are only counted."""

_RESULT_KEYS = ("eval_loss", "loss")
"""The metrics that sum up a run whose objective was not measured, the best first."""

_ENDED = (RunStatus.SUCCEEDED, RunStatus.FAILED)


_End = tuple[datetime, Run | Sweep | Study]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    run: Run
    result: MetricSummary | None
    """What its method is judged by, or its training loss if it was not validated."""
    fix: Fix | None
    """The likeliest fix of a failed run."""
    kind: Literal["run"] = "run"

    @property
    def key(self) -> str:
        return end_key(self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedGroup:
    """A sweep or study whose runs have all ended."""

    kind: Literal["sweep", "study"]
    group: Sweep | Study
    ended_at: datetime
    counts: Mapping[RunStatus, int]
    best: Trial | None = None
    """The best trial of a sweep."""

    @property
    def key(self) -> str:
        return group_key(self.group, self.ended_at)

    @property
    def best_settings(self) -> str:
        return sweep_preview.format_settings(self.best.settings) if self.best else ""

    @property
    def has_failed(self) -> bool:
        """Whether nothing came out."""
        failed = isinstance(self.group, Sweep) and self.group.status is SweepStatus.FAILED
        return failed or not self.counts[RunStatus.SUCCEEDED]

    @property
    def error(self) -> str:
        return self.group.error if self.has_failed and isinstance(self.group, Sweep) else ""


@dataclass(frozen=True, slots=True)
class RecentEnds:
    listed: Sequence[EndedRun | EndedGroup]
    count: int
    """How many ended, listed or not."""
    newest: datetime | None
    """When the last of them ended; None if none did."""
    oldest: datetime | None
    """When the first of them ended."""


def end_key(run: Run) -> str:
    """Return a name of the end of a run; a run that is retried ends once more."""
    return f"{run.id}-{_seconds(run.finished_at)}"


def group_key(group: Sweep | Study, ended_at: datetime | None) -> str:
    """Return a name of the end of a sweep or study."""
    letter = "s" if isinstance(group, Sweep) else "p"
    return f"{letter}{group.id}-{_seconds(ended_at)}"


def study_end(db: Session, study_id: int) -> datetime | None:
    """Return when the last run of a study ended; None while one of them has not."""
    rows = db.exec(select(Run).where(Run.study_id == study_id)).all()
    if not all(run.status.is_final for run in rows):
        return None
    return max((run.finished_at for run in rows if run.finished_at), default=None)


def list_recent(db: Session, since: datetime, seen: Collection[str]) -> RecentEnds:
    """Return what succeeded or failed after a time, the last first. Cancelled work is no news."""
    found: list[_End] = [*_runs(db, since), *_sweeps(db, since), *_studies(db, since)]
    ends = [(at, item) for at, item in found if _key(item, at) not in seen]
    ends.sort(key=lambda end: end[0], reverse=True)
    listed = ends[:MAX_LISTED]
    ids = [item.id or 0 for _at, item in listed if isinstance(item, Run)]
    keys = {key for _at, item in listed if isinstance(item, Run) for key in _result_keys(item)}
    summaries = metric_summaries.load_by_run(db, ids, sorted(keys))
    return RecentEnds(
        [
            _ended_run(db, item, summaries.get(item.id or 0, {}))
            if isinstance(item, Run)
            else _ended_group(db, item, at)
            for at, item in listed
        ],
        len(ends),
        listed[0][0] if listed else None,
        ends[-1][0] if ends else None,
    )


def _seconds(at: datetime | None) -> int:
    return int(at.timestamp()) if at else 0


def _key(item: Run | Sweep | Study, ended_at: datetime) -> str:
    return end_key(item) if isinstance(item, Run) else group_key(item, ended_at)


def _runs(db: Session, since: datetime) -> list[_End]:
    newest = (
        select(Run.id)
        .where(col(Run.finished_at) > since, col(Run.status).in_(_ENDED))
        .where(col(Run.archived_at).is_(None), col(Run.deleted_at).is_(None))
        .where(col(Run.sweep_id).is_(None), col(Run.study_id).is_(None))
    )
    # An index has all that is compared and sorted; rows are wide.
    newest = newest.order_by(col(Run.finished_at).desc()).limit(_MAX_READ)
    rows = db.exec(select(Run).where(col(Run.id).in_(newest)))
    return [(run.finished_at, run) for run in rows if run.finished_at]


def _sweeps(db: Session, since: datetime) -> list[_End]:
    ended = (SweepStatus.FINISHED, SweepStatus.FAILED)
    query = select(Sweep).where(col(Sweep.finished_at) > since, col(Sweep.status).in_(ended))
    rows = db.exec(query.order_by(col(Sweep.finished_at).desc()).limit(_MAX_READ))
    return [(sweep.finished_at, sweep) for sweep in rows if sweep.finished_at]


def _studies(db: Session, since: datetime) -> list[_End]:
    last = func.max(col(Run.finished_at))
    recent = (
        select(Run.study_id)
        .where(col(Run.finished_at) > since, col(Run.study_id).is_not(None))
        .where(col(Run.status).in_(_ENDED))
        .group_by(col(Run.study_id))
        .order_by(last.desc())
        .limit(_MAX_READ)
    )
    rows = db.exec(select(Study).where(col(Study.id).in_(recent)))
    return [(at, study) for study in rows if (at := study_end(db, study.id or 0))]


def _ended_run(db: Session, run: Run, summaries: dict[str, MetricSummary]) -> EndedRun:
    return EndedRun(run=run, result=_result(run, summaries), fix=_first_fix(db, run))


def _ended_group(db: Session, group: Sweep | Study, at: datetime) -> EndedGroup:
    is_sweep = isinstance(group, Sweep)
    belongs = Run.sweep_id == group.id if is_sweep else Run.study_id == group.id
    counts = Counter(run.status for run in db.exec(select(Run).where(belongs)))
    best = sweeps.best(group, sweeps.list_trials(db, group)) if isinstance(group, Sweep) else None
    kind: Literal["sweep", "study"] = "sweep" if is_sweep else "study"
    return EndedGroup(kind=kind, group=group, ended_at=at, counts=counts, best=best)


def _result_keys(run: Run) -> tuple[str, ...]:
    return (METHODS[run.recipe.method].objective.key, *_RESULT_KEYS)


def _result(run: Run, summaries: dict[str, MetricSummary]) -> MetricSummary | None:
    found = (summaries.get(key) for key in _result_keys(run))
    return next((summary for summary in found if summary and summary.curve), None)


def _first_fix(db: Session, run: Run) -> Fix | None:
    report = failure_report.explain(db, run)
    fixes = failure_report.list_fixes(db, run, report) if report else []
    return next((fix for fix in fixes if not fix.swap), None)
