"""The states of a run, and the only function that changes them.

    queued ──▶ starting ──▶ running ──▶ succeeded
     │ ▲ ▲        │  │        │ └────▶ failed ───────┐
     │ │ └────────┘  └▶ stopping ────▶ cancelled ────┤
     │ └── paused ◀────────┘  (or succeeded, failed) │
     │ └──────────────── retried ◀───────────────────┘
     └▶ cancelled (or failed, if its files cannot be read)

A live run whose process is lost returns to `queued` and resumes from its newest checkpoint.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlmodel import Session

from studio.db.states import RunStatus
from studio.db.tables import Run, RunEvent
from studio.services.notifications import deliveries

_Q, _S, _R, _X = RunStatus.QUEUED, RunStatus.STARTING, RunStatus.RUNNING, RunStatus.STOPPING
_ENDED = frozenset({RunStatus.SUCCEEDED, RunStatus.FAILED})

TRANSITIONS: dict[RunStatus, frozenset[RunStatus]] = {
    _Q: frozenset({_S, RunStatus.CANCELLED, RunStatus.FAILED}),
    _S: frozenset({_Q, _R, _X, RunStatus.FAILED}),
    _R: frozenset({_Q, _X, RunStatus.PAUSED}) | _ENDED,
    _X: frozenset({_Q, RunStatus.PAUSED, RunStatus.CANCELLED}) | _ENDED,
    RunStatus.PAUSED: frozenset({_Q, RunStatus.CANCELLED}),
    RunStatus.FAILED: frozenset({_Q}),
    RunStatus.CANCELLED: frozenset({_Q}),
}


def move(db: Session, run: Run, to: RunStatus, details: Mapping[str, Any] | None = None) -> bool:
    """Move a run to another state if the diagram allows it. Return whether it moved."""
    if to not in TRANSITIONS.get(run.status, ()):
        return False
    run.status = to
    run.finished_at = datetime.now(UTC) if to.is_final else None
    deliveries.enqueue_for_run(db, run, details or {})
    if not to.is_live:
        run.phase, run.asked = "", None
    record_event(db, run, to.value, details)
    return True


def record_event(db: Session, run: Run, kind: str, data: Mapping[str, Any] | None = None) -> None:
    """Append an event to the run's history."""
    assert run.id is not None  # noqa: S101 -- a row that was never flushed is a bug of ours
    db.add(RunEvent(run_id=run.id, kind=kind, data=dict(data or {})))
