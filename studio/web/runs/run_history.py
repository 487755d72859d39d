"""A run's history on its page: what befell it, newest first, and each attempt at it."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlmodel import Session

from studio.db.tables import Attempt, Run, RunEvent
from studio.services.estimates import run_progress
from studio.services.runs import attempts, run_events, runs
from studio.services.runs.attempts import LOST

SHOWN = 200
"""How much of a long history is read; the rest is had over REST."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that happened, or several alike that followed each other."""

    at: datetime
    kind: str
    words: str
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """One attempt, as it is shown."""

    attempt: Attempt
    seconds: float | None
    ended: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    lines: list[Line]
    last_id: int
    """The newest happening that is known here: a stream goes on after it."""
    is_cut: bool
    goes: list[Go]


def of(db: Session, run: Run) -> Past:
    run_id = run.id or 0
    found = runs.list_newest_events(db, run_id, limit=SHOWN)
    return Past(
        lines=_lines(found),
        last_id=(found[0].id or 0) if found else 0,
        is_cut=len(found) == SHOWN,
        goes=[_go(run, one) for one in attempts.list_attempts(db, run_id)],
    )


def _lines(found: Sequence[RunEvent]) -> list[Line]:
    """Put into words, newest first. Checkpoints in a row are one line: the newest is the news."""
    lines: list[Line] = []
    for row in found:
        before = lines[-1] if lines else None
        if before and before.kind == row.kind == "checkpointed":
            lines[-1] = replace(before, times=before.times + 1)
        else:
            lines.append(Line(at=row.at, kind=row.kind, words=run_events.to_event(row).words))
    return lines


def _go(run: Run, attempt: Attempt) -> Go:
    end = attempt.ended_at
    seconds = run_progress.elapsed_seconds(attempt.began_at, end) if end else None
    ended = _ended(attempt) if end else _unended(run, attempt)
    return Go(attempt=attempt, seconds=seconds, ended=ended)


def _unended(run: Run, attempt: Attempt) -> str:
    if attempt.number != run.attempt:
        return "its end was not written down"
    # Its last word is known a moment before its process is gone.
    return "goes on" if run.status.is_live else run.status.value


def _ended(attempt: Attempt) -> str:
    code = attempt.exit_code
    if attempt.outcome != LOST:
        return attempt.outcome
    if code is not None and -code in list(signal.Signals):
        return f"lost: ended by {signal.Signals(-code).name}"
    return "lost without a word" if code is None else f"lost without a word, exit code {code}"
