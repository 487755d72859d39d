"""The history of a run for its page: events, newest first, and attempts."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlmodel import Session

from studio.db.tables import Attempt, Run, RunEvent
from studio.services.estimates import run_progress
from studio.services.runs import attempts, run_events, runs
from studio.services.runs.attempts import LOST

MAX_EVENTS = 200
"""How many events the page shows; the REST API returns the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLine:
    """One event, or several consecutive ones of the same kind."""

    at: datetime
    kind: str
    text: str
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One attempt as the page shows it."""

    attempt: Attempt
    seconds: float | None
    end_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    events: list[EventLine]
    last_id: int
    """Id of the newest event shown; the event stream continues after it."""
    is_truncated: bool
    attempts: list[AttemptRow]


def load_history(db: Session, run: Run) -> RunHistory:
    run_id = run.id or 0
    events = runs.list_newest_events(db, run_id, limit=MAX_EVENTS)
    return RunHistory(
        events=_event_lines(events),
        last_id=(events[0].id or 0) if events else 0,
        is_truncated=len(events) == MAX_EVENTS,
        attempts=[_attempt_row(run, attempt) for attempt in attempts.list_attempts(db, run_id)],
    )


def _event_lines(events: Sequence[RunEvent]) -> list[EventLine]:
    """Describe events, newest first. Consecutive checkpoints share a line: that of the newest."""
    lines: list[EventLine] = []
    for row in events:
        previous = lines[-1] if lines else None
        if previous and previous.kind == row.kind == "checkpointed":
            lines[-1] = replace(previous, count=previous.count + 1)
        else:
            lines.append(EventLine(at=row.at, kind=row.kind, text=run_events.to_event(row).words))
    return lines


def _attempt_row(run: Run, attempt: Attempt) -> AttemptRow:
    end = attempt.ended_at
    seconds = run_progress.elapsed_seconds(attempt.began_at, end) if end else None
    ended = _end_reason(attempt) if end else _unfinished_state(run, attempt)
    return AttemptRow(attempt=attempt, seconds=seconds, end_reason=ended)


def _unfinished_state(run: Run, attempt: Attempt) -> str:
    if attempt.number != run.attempt:
        return "end not recorded"
    # Its final event arrives a moment before its process exits.
    return "in progress" if run.status.is_live else run.status.value


def _end_reason(attempt: Attempt) -> str:
    code = attempt.exit_code
    if attempt.outcome != LOST:
        return attempt.outcome
    if code is not None and -code in list(signal.Signals):
        return f"lost: killed by {signal.Signals(-code).name}"
    return "lost: no exit code" if code is None else f"lost: exit code {code}"
