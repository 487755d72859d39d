"""How far a run is, when it will finish, and where its time went."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from studio.db.tables import Run
from studio.protocols.events import Event, PhaseChanged, Started

PHASE_TITLES = {"training": "auditing number formats"}
"""Before the first step, the phase `training` means that number formats are being audited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    share: float | None
    """Fraction of steps done, 0 to 1; None until the number of steps is known."""
    eta_seconds: float | None
    """Estimated from the mean pace since the first step; None until there are two steps. The
    error is at most the remaining steps times how far the paces of steps differ."""
    queued_seconds: float | None
    launch_seconds: float | None
    """From the claim until the trainer was built."""
    first_step_seconds: float | None
    """From the trainer being ready until the first step was done."""
    total_seconds: float | None
    """From the claim until the end, or until now."""


def measure(run: Run, now: datetime | None = None) -> Progress:
    """Measure a run's progress, now or at a given time."""
    now = run.finished_at or now or datetime.now(UTC)
    return Progress(
        share=run.step / run.total_steps if run.total_steps else None,
        eta_seconds=_eta(run, now),
        queued_seconds=_elapsed_or_none(run.created_at, run.claimed_at),
        launch_seconds=_elapsed_or_none(run.claimed_at, run.started_at),
        first_step_seconds=_elapsed_or_none(run.started_at, run.first_step_at),
        total_seconds=_elapsed_or_none(run.claimed_at, now),
    )


def startup_phases(run: Run, events: Iterable[Event]) -> list[tuple[str, float]]:
    """Return the phases of a run before its first step was done, each with its seconds, in order.

    The first events of its process suffice, because no phase recurs before that step is done.

    """
    if run.claimed_at is None or run.first_step_at is None:
        return []
    moments = [("Waiting in the queue", run.created_at), ("Starting the process", run.claimed_at)]
    for event in events:
        # Events of earlier attempts are in the same file.
        if run.claimed_at <= event.at < run.first_step_at and isinstance(
            event, PhaseChanged | Started
        ):
            name = "first step" if isinstance(event, Started) else event.name
            moments.append((PHASE_TITLES.get(name, name).capitalize(), event.at))
    ends = [start for _, start in moments[1:]] + [run.first_step_at]
    return [
        (name, elapsed_seconds(start, end))
        for (name, start), end in zip(moments, ends, strict=True)
    ]


def _eta(run: Run, now: datetime) -> float | None:
    # Measured between this attempt's first step and the newest: a pace needs two points.
    steps = run.step - run.resumed_step - 1
    if not run.status.is_live or run.first_step_at is None or not run.total_steps or steps < 1:
        return None
    step_seconds = elapsed_seconds(run.first_step_at, now) / steps
    return step_seconds * (run.total_steps - run.step)


def _elapsed_or_none(start: datetime | None, end: datetime | None) -> float | None:
    return elapsed_seconds(start, end) if start and end else None


def elapsed_seconds(start: datetime, end: datetime) -> float:
    """Return the seconds between two times; 0 if the clock was set back in between."""
    return max(0.0, (end - start).total_seconds())
