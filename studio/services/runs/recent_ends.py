"""The runs that ended since someone last looked: what came out, or why they failed."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlmodel import Session, col, select

from studio.db.states import RunStatus
from studio.db.summaries import MetricSummary
from studio.db.tables import Run
from studio.services.metrics import metric_summaries
from studio.services.runs import failure_report
from studio.services.runs.fixes import Fix

MAX_LISTED = 5
_MAX_READ = 100
"""More are only counted."""

_RESULT_KEYS = ("eval_loss", "loss")
"""The metrics that sum up a run, the best first."""

_ENDED = (RunStatus.SUCCEEDED, RunStatus.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    run: Run
    result: MetricSummary | None
    """Its validation loss, or its training loss if it was not validated."""
    fix: Fix | None
    """The likeliest fix of a failed run."""


@dataclass(frozen=True, slots=True)
class RecentEnds:
    listed: Sequence[EndedRun]
    count: int
    """How many ended, listed or not."""


def end_key(run: Run) -> str:
    """Return a name of the end of a run; a run that is retried ends once more."""
    ended_at = int(run.finished_at.timestamp()) if run.finished_at else 0
    return f"{run.id}-{ended_at}"


def list_recent(db: Session, since: datetime, seen: Collection[str]) -> RecentEnds:
    """Return the runs that succeeded or failed after a time, the last first.

    Cancelled runs are no news, and the runs of a sweep or study are counted on its own page.
    """
    query = (
        select(Run)
        .where(col(Run.finished_at) > since, col(Run.status).in_(_ENDED))
        .where(col(Run.archived_at).is_(None), col(Run.deleted_at).is_(None))
        .where(col(Run.sweep_id).is_(None), col(Run.study_id).is_(None))
    )
    recent = db.exec(query.order_by(col(Run.finished_at).desc()).limit(_MAX_READ)).all()
    ended = [run for run in recent if end_key(run) not in seen]
    listed = ended[:MAX_LISTED]
    ids = [run.id or 0 for run in listed]
    summaries = metric_summaries.load_by_run(db, ids, _RESULT_KEYS)
    return RecentEnds(
        [
            EndedRun(
                run=run, result=_result(summaries.get(run.id or 0, {})), fix=_first_fix(db, run)
            )
            for run in listed
        ],
        len(ended),
    )


def _result(summaries: dict[str, MetricSummary]) -> MetricSummary | None:
    found = (summaries.get(key) for key in _RESULT_KEYS)
    return next((summary for summary in found if summary and summary.curve), None)


def _first_fix(db: Session, run: Run) -> Fix | None:
    report = failure_report.explain(db, run)
    fixes = failure_report.list_fixes(db, run, report) if report else []
    return next((fix for fix in fixes if not fix.swap), None)
