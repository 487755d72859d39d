"""Commands on a run: cancel, stop and keep, pause, resume, retry, restart."""

from contextlib import suppress

from sqlmodel import Session, col, delete

from studio.db.states import RunCommand, RunStatus
from studio.db.summaries import MetricSummary
from studio.db.tables import Metric, Run, RunHardwareSample, Sample
from studio.errors import ConflictError
from studio.services.runs import runs, states


def cancel(db: Session, run_id: int) -> Run:
    """Take a run out of the queue, or ask it to stop without keeping the model trained so far.

    Raises:
        ConflictError: the run has ended.

    """
    run = runs.get(db, run_id)
    if run.status in (RunStatus.QUEUED, RunStatus.PAUSED):
        states.move(db, run, RunStatus.CANCELLED)
        return run
    return _request(db, run, RunCommand.CANCEL)


def stop_and_keep(db: Session, run_id: int) -> Run:
    """Ask a run to stop and to save the model trained so far as its result."""
    return _request(db, runs.get(db, run_id), RunCommand.KEEP)


def pause(db: Session, run_id: int) -> Run:
    """Ask a run to write a checkpoint and free its slot."""
    return _request(db, runs.get(db, run_id), RunCommand.PAUSE)


def drain(db: Session, run_id: int) -> None:
    """Ask a run to write a checkpoint and requeue, because its worker is shutting down."""
    with suppress(ConflictError):
        _request(db, runs.get(db, run_id), RunCommand.DRAIN)


def resume(db: Session, run_id: int) -> Run:
    """Queue a paused run again, to resume where it stopped.

    Raises:
        ConflictError: the run is not paused.

    """
    run = runs.get(db, run_id)
    if run.status is not RunStatus.PAUSED:
        raise ConflictError(f"Run {run_id} is {run.status}, not paused.")
    return _requeue(db, run)


def retry(db: Session, run_id: int) -> Run:
    """Queue a failed or cancelled run again, to resume from its newest checkpoint.

    Raises:
        ConflictError: the run has neither failed nor been cancelled, or has no checkpoint.

    """
    run = _require_failed(db, run_id)
    if run.checkpoint_step is None:
        raise ConflictError(f"Run {run_id} has no checkpoint.", hint="Restart it instead.")
    return _requeue(db, run)


def restart(db: Session, run_id: int) -> Run:
    """Queue a failed or cancelled run again, to start from the first step.

    Its metrics and answers are deleted, so that they always describe one continuous course from
    the first step. Its history, attempts and log are kept.

    Raises:
        ConflictError: the run has neither failed nor been cancelled.

    """
    run = _require_failed(db, run_id)
    for table in (Metric, MetricSummary, Sample, RunHardwareSample):
        db.exec(delete(table).where(col(table.run_id) == run_id))
    run.step = run.resumed_step = run.tokens = 0
    run.epoch, run.metrics, run.resolved = 0.0, {}, {}
    run.checkpoint_step = run.total_steps = None
    states.record_event(db, run, runs.RESTARTED_KIND)
    _requeue(db, run)
    run.resumes = False
    return run


_REQUEST_ORDER = (RunCommand.DRAIN, RunCommand.PAUSE, RunCommand.KEEP, RunCommand.CANCEL)
"""A stopping run accepts stronger requests only; weakest first."""


def _request(db: Session, run: Run, command: RunCommand) -> Run:
    if run.status is RunStatus.STOPPING:
        current = run.asked or RunCommand.CANCEL
        if _REQUEST_ORDER.index(command) <= _REQUEST_ORDER.index(current):
            raise ConflictError(f"Run {run.id} is already stopping.")
    elif not states.move(db, run, RunStatus.STOPPING, {"asked": command.value}):
        raise ConflictError(f"Run {run.id} is already {run.status}.")
    run.asked = command
    return run


def _require_failed(db: Session, run_id: int) -> Run:
    run = runs.get(db, run_id)
    if run.status not in (RunStatus.FAILED, RunStatus.CANCELLED):
        raise ConflictError(f"Run {run_id} is {run.status}: there is nothing to retry.")
    return run


def _requeue(db: Session, run: Run) -> Run:
    run.resumes, run.is_held, run.deleted_at = True, False, None
    run.error_code = run.error_message = run.error_hint = ""
    states.move(db, run, RunStatus.QUEUED)
    return run
