"""What a person may ask of a run: stop, keep, pause, go on, try again."""

from contextlib import suppress

from sqlmodel import Session, col, delete

from studio.db.states import RunCommand, RunStatus
from studio.db.summaries import MetricSummary
from studio.db.tables import Metric, Run, Sample
from studio.errors import ConflictError
from studio.services.runs import runs, states


def cancel(db: Session, run_id: int) -> Run:
    """Take a run out of the queue, or ask for it to stop; what it has learnt is not kept.

    Raises:
        ConflictError: it has ended.

    """
    run = runs.get(db, run_id)
    if run.status in (RunStatus.QUEUED, RunStatus.PAUSED):
        states.move(db, run, RunStatus.CANCELLED)
        return run
    return _request(db, run, RunCommand.CANCEL)


def stop_and_keep(db: Session, run_id: int) -> Run:
    """Ask a run to stop, and to save what it has learnt as its result."""
    return _request(db, runs.get(db, run_id), RunCommand.KEEP)


def pause(db: Session, run_id: int) -> Run:
    """Ask a run to write a checkpoint and leave its slot."""
    return _request(db, runs.get(db, run_id), RunCommand.PAUSE)


def drain(db: Session, run_id: int) -> None:
    """Ask a run to write a checkpoint and wait in the queue: its worker is leaving."""
    with suppress(ConflictError):
        _request(db, runs.get(db, run_id), RunCommand.DRAIN)


def resume(db: Session, run_id: int) -> Run:
    """Queue a paused run again, to go on from where it was.

    Raises:
        ConflictError: it is not paused.

    """
    run = runs.get(db, run_id)
    if run.status is not RunStatus.PAUSED:
        raise ConflictError(f"Run {run_id} is {run.status}, not paused.")
    return _requeue(db, run)


def retry(db: Session, run_id: int) -> Run:
    """Queue a run that has ended badly again, to go on from its newest checkpoint.

    Raises:
        ConflictError: it has not failed, or left no checkpoint.

    """
    run = _require_failed(db, run_id)
    if run.checkpoint_step is None:
        raise ConflictError(f"Run {run_id} left no checkpoint.", hint="Try it from the start.")
    return _requeue(db, run)


def restart(db: Session, run_id: int) -> Run:
    """Queue a run that has ended badly again, to begin anew.

    Its numbers and answers go, so that none is there twice: what is told of a run is always one
    course from its first step. Its history, its attempts and its log stay.

    Raises:
        ConflictError: it has not failed.

    """
    run = _require_failed(db, run_id)
    for table in (Metric, MetricSummary, Sample):
        db.exec(delete(table).where(col(table.run_id) == run_id))
    run.step = run.resumed_step = run.tokens = 0
    run.epoch, run.metrics, run.resolved = 0.0, {}, {}
    run.checkpoint_step = run.total_steps = None
    states.record_event(db, run, runs.RESTARTED_KIND)
    _requeue(db, run)
    run.resumes = False
    return run


_REQUEST_ORDER = (RunCommand.DRAIN, RunCommand.PAUSE, RunCommand.KEEP, RunCommand.CANCEL)
"""What was asked may be asked for more strongly, until it is done."""


def _request(db: Session, run: Run, ask: RunCommand) -> Run:
    if run.status is RunStatus.STOPPING:
        asked = run.asked or RunCommand.CANCEL
        if _REQUEST_ORDER.index(ask) <= _REQUEST_ORDER.index(asked):
            raise ConflictError(f"Run {run.id} is already stopping.")
    elif not states.move(db, run, RunStatus.STOPPING, {"asked": ask.value}):
        raise ConflictError(f"Run {run.id} is already {run.status}.")
    run.asked = ask
    return run


def _require_failed(db: Session, run_id: int) -> Run:
    run = runs.get(db, run_id)
    if run.status not in (RunStatus.FAILED, RunStatus.CANCELLED):
        raise ConflictError(f"Run {run_id} is {run.status}: there is nothing to try again.")
    return run


def _requeue(db: Session, run: Run) -> Run:
    run.resumes, run.is_held, run.deleted_at = True, False, None
    run.error_code = run.error_message = run.error_hint = ""
    states.move(db, run, RunStatus.QUEUED)
    return run
