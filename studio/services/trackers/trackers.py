"""Send runs to trackers, as they train or later: one background task for all trackers of a run.

A task sends what there is and ends when nothing follows for a while; the worker queues the next one
when there is more. Failures are retried for a day. No run ever waits for it.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlmodel import Session, col, select

from studio.db.states import FINAL, TaskStatus
from studio.db.tables import Experiment, Run
from studio.db.tasks import Task
from studio.db.trackers import TrackedRun
from studio.errors import ConflictError, NotFoundError
from studio.protocols.run_dir import RunDir
from studio.services.runs import runs
from studio.services.tasks import tasks
from studio.settings import Settings, TrackerName
from studio.trackers import contract
from studio.trackers.contract import (
    RETRY_SECONDS,
    RunEnd,
    RunFacts,
    TrackerJob,
    TrackerOptions,
    TrackingJob,
    TrackingResult,
)
from studio.trackers.table import require_installed

KIND = "track"
PAUSE = timedelta(minutes=2)
"""How long after a task the next one starts at the earliest, unless the run has ended."""

MAX_FAILURES = len(RETRY_SECONDS)
"""After more failures in a row, sending is given up until a user tries again."""

MAX_TRACKERS = 10
"""To how many places a run can be sent."""


def list_for_run(db: Session, run_id: int) -> Sequence[TrackedRun]:
    query = select(TrackedRun).where(TrackedRun.run_id == run_id)
    return db.exec(query.order_by(col(TrackedRun.id))).all()


def get(db: Session, run_id: int, key: str) -> TrackedRun:
    """Return where a run is sent.

    Raises:
        NotFoundError: It is not sent there.

    """
    query = select(TrackedRun).where(TrackedRun.run_id == run_id, TrackedRun.key == key)
    row = db.exec(query).first()
    if row is None:
        raise NotFoundError(f"Run {run_id} is not sent to {key}.")
    return row


def add(
    db: Session, run_id: int, tracker: TrackerName, options: TrackerOptions | None = None
) -> TrackedRun:
    """Send a run to a tracker, from its first event on; it may have ended long ago.

    Raises:
        ConflictError: It is sent to too many places.

    """
    runs.get(db, run_id)
    options = options or TrackerOptions()
    rows = list_for_run(db, run_id)
    wanted = options.model_dump(mode="json")
    for row in rows:
        if row.tracker == tracker and row.options == wanted:
            return row
    if len(rows) >= MAX_TRACKERS:
        raise ConflictError(f"A run can be sent to at most {MAX_TRACKERS} places.")
    number = 1 + sum(row.tracker == tracker for row in rows)
    key = tracker if number == 1 else f"{tracker}-{number}"
    added = TrackedRun(run_id=run_id, tracker=tracker, key=key, options=wanted)
    db.add(added)
    db.flush()
    return added


def start(
    db: Session, run_id: int, tracker: TrackerName, options: TrackerOptions | None = None
) -> TrackedRun:
    """Send a run to a tracker that somebody has chosen.

    Raises:
        ConflictError: It is sent to too many places.
        UnavailableError: A package is not installed.

    """
    require_installed(tracker)
    return add(db, run_id, tracker, options)


def add_defaults(db: Session, run: Run, settings: Settings) -> None:
    """Send a run to the trackers of all new runs."""
    for tracker in settings.trackers:
        add(db, run.id or 0, tracker)


def remove(db: Session, settings: Settings, run_id: int, key: str) -> None:
    """Stop sending a run to a tracker. What was sent stays there."""
    db.delete(get(db, run_id, key))
    run = runs.get(db, run_id)
    folder = RunDir(_run_folder(settings, run)).trackers
    if current_task(db, run) is None:
        contract.forget(folder, key)
    else:
        contract.ask(folder, key, "stop")


def retry(db: Session, settings: Settings, run_id: int, key: str) -> TrackedRun:
    """Try again at once to send a run to a tracker."""
    row = get(db, run_id, key)
    row.failures, row.due_at = 0, datetime.now(UTC)
    contract.ask(RunDir(_run_folder(settings, runs.get(db, run_id))).trackers, key, "retry")
    return row


def has_due(db: Session, now: datetime) -> bool:
    """Whether a run has news for a tracker."""
    return bool(_list_due(db, now))


def enqueue_due(db: Session, settings: Settings, now: datetime) -> None:
    """Queue tasks for the runs that have news for their trackers."""
    for run, rows in _list_due(db, now):
        tasks.enqueue(db, KIND, _subject(run), _job(db, settings, run, rows))


def current_task(db: Session, run: Run) -> Task | None:
    """Return the task that sends a run now or next, if there is one."""
    return tasks.latest(db, KIND, _subject(run), lambda task: not task.status.is_final)


def on_task_end(db: Session, task: Task, result: dict[str, Any]) -> None:
    """Store how far a task has come, and when the next one may start."""
    run_id, now = int(task.subject.partition(":")[2]), datetime.now(UTC)
    outcomes = TrackingResult.model_validate(result).trackers if result else {}
    for row in list_for_run(db, run_id):
        if row.key not in task.params["trackers"]:
            continue
        if outcome := outcomes.get(row.key):
            row.events_offset, row.is_closed = outcome.offset, outcome.is_closed
            row.failures, row.error, row.hint = outcome.failures, outcome.error, outcome.hint
            row.due_at = outcome.retry_at or now + PAUSE
            continue
        if task.status is TaskStatus.CANCELLED:
            row.failures, row.error, row.hint = MAX_FAILURES + 1, "Sending was cancelled.", ""
        else:
            row.failures += 1
            row.error, row.hint = task.error_message, task.error_hint
        row.due_at = now + timedelta(seconds=RETRY_SECONDS[min(row.failures, MAX_FAILURES) - 1])


def _subject(run: Run) -> str:
    return f"run:{run.id}"


def _list_due(db: Session, now: datetime) -> list[tuple[Run, list[TrackedRun]]]:
    """Return the runs with news for trackers whose time has come, and these trackers."""
    is_final = col(Run.status).in_(FINAL)
    has_news = col(TrackedRun.events_offset) < col(Run.events_offset)
    query = (
        select(TrackedRun, Run)
        .join(Run, col(Run.id) == col(TrackedRun.run_id))
        .where(
            col(Run.deleted_at).is_(None),
            col(TrackedRun.failures) <= MAX_FAILURES,
            (has_news & col(Run.first_step_at).is_not(None))
            | (is_final & ~col(TrackedRun.is_closed)),
            (col(TrackedRun.due_at) <= now) | (is_final & (col(TrackedRun.failures) == 0)),
        )
        .order_by(col(TrackedRun.id))
    )
    due: dict[int, list[TrackedRun]] = defaultdict(list)
    by_id: dict[int, Run] = {}
    for row, run in db.exec(query):
        due[row.run_id].append(row)
        by_id[row.run_id] = run
    busy = _busy_runs(db) if due else set()
    return [(by_id[run_id], rows) for run_id, rows in due.items() if run_id not in busy]


def _busy_runs(db: Session) -> set[int]:
    states = (TaskStatus.QUEUED, TaskStatus.RUNNING)
    query = select(Task.subject).where(Task.kind == KIND, col(Task.status).in_(states))
    return {int(subject.partition(":")[2]) for subject in db.exec(query)}


def _job(db: Session, settings: Settings, run: Run, rows: Sequence[TrackedRun]) -> dict[str, Any]:
    job = TrackingJob(
        folder=_run_folder(settings, run),
        facts=_facts(db, settings, run),
        trackers={row.key: _tracker_job(row, settings) for row in rows},
        about=f"run {run.id}",
    )
    return job.model_dump(mode="json")


def _tracker_job(row: TrackedRun, settings: Settings) -> TrackerJob:
    options = {"entity": settings.wandb_entity} if row.tracker == "wandb" else {}
    given = {name: value for name, value in row.options.items() if value}
    fields = {"tracker": row.tracker, "options": options | given, "failures": row.failures}
    return TrackerJob.model_validate(fields)


def _run_folder(settings: Settings, run: Run) -> Path:
    return settings.runs / str(run.id)


def _facts(db: Session, settings: Settings, run: Run) -> RunFacts:
    experiment = db.get(Experiment, run.experiment_id)
    address = settings.public_url.rstrip("/")
    return RunFacts(
        run=run.id or 0,
        # Two studios may send their run 7 to one server.
        key=f"studio-{run.created_at:%Y%m%d%H%M%S}-{run.id}",
        name=run.name,
        experiment=experiment.name if experiment else run.name,
        tags=tuple(run.tags),
        notes=run.notes,
        url=f"{address}/runs/{run.id}" if address else "",
        recipe=run.recipe.model_dump(mode="json"),
        created_at=run.created_at,
        end=_end(run),
    )


def _end(run: Run) -> RunEnd | None:
    if not run.status.is_final:
        return None
    values = {
        "status": run.status.value,
        "at": run.finished_at or datetime.now(UTC),
        "error": run.error_message,
    }
    return RunEnd.model_validate(values)
