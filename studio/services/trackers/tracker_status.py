"""How far a run has come with each tracker, for display."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlmodel import Session

from studio.db.states import TaskStatus
from studio.db.tables import Run
from studio.db.trackers import TrackedRun
from studio.protocols.run_dir import RunDir
from studio.services.trackers import trackers
from studio.settings import Settings, TrackerName
from studio.trackers import table
from studio.trackers.contract import TrackerState
from studio.trackers.table import TRACKERS, Tracker

Progress = Literal["waiting", "sending", "sent", "failing", "given_up"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerStatus:
    """How far a run has come with one tracker."""

    row: TrackedRun
    title: str
    project: str
    """The project it was asked for; empty if its experiment names it."""
    progress: Progress
    step: int | None
    """The last step that was sent; None before the first."""
    place: str
    """Where to see it: a folder or an address; empty before the first batch."""
    command: str
    """The command that shows it; empty if `place` is an address."""
    error: str
    hint: str
    retry_at: datetime | None
    """When it is tried again; None if it is not failing, or if that has been given up."""

    @property
    def key(self) -> str:
        return self.row.key

    @property
    def is_going(self) -> bool:
        return self.progress in {"waiting", "sending"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerChoice:
    """A tracker that runs can be sent to."""

    name: TrackerName
    tracker: Tracker
    is_installed: bool
    install_command: str


def list_choices() -> list[TrackerChoice]:
    return [
        TrackerChoice(
            name=name,
            tracker=tracker,
            is_installed=tracker.is_installed,
            install_command=table.install_command(name),
        )
        for name, tracker in TRACKERS.items()
    ]


def list_for_run(db: Session, settings: Settings, run: Run) -> list[TrackerStatus]:
    """Return how far a run has come with each of its trackers."""
    task = trackers.current_task(db, run)
    is_sending = task is not None and task.status is TaskStatus.RUNNING
    folder = RunDir(settings.runs / str(run.id))
    return [
        _status(run, row, TrackerState.read(folder.trackers, row.key), is_sending=is_sending)
        for row in trackers.list_for_run(db, run.id or 0)
    ]


def _status(run: Run, row: TrackedRun, state: TrackerState, *, is_sending: bool) -> TrackerStatus:
    # A process that still works has newer facts than the row.
    error, hint = (state.error, state.hint) if is_sending else (row.error, row.hint)
    progress = _progress(run, row, state, error, is_sending=is_sending)
    return TrackerStatus(
        row=row,
        title=TRACKERS[_name(row)].title,
        project=str(row.options.get("project", "")),
        progress=progress,
        step=state.step if state.step >= 0 else None,
        place=state.place,
        command=state.command,
        error=error,
        hint=hint,
        retry_at=row.due_at if progress == "failing" and not is_sending else None,
    )


def _progress(
    run: Run, row: TrackedRun, state: TrackerState, error: str, *, is_sending: bool
) -> Progress:
    if row.failures > trackers.MAX_FAILURES:
        return "given_up"
    if error:
        return "failing"
    if state.is_closed and run.status.is_final:
        return "sent"
    return "sending" if is_sending else "waiting"


def _name(row: TrackedRun) -> TrackerName:
    return next(name for name in TRACKERS if name == row.tracker)
