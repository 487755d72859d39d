"""One attempt at a run, from its claim to its end, as reported by its worker.

A worker owns an attempt by its own name and the attempt's number. A worker that was frozen until
its lease ran out no longer owns the attempt, and its writes are refused. A run has succeeded only
if its last event says so; success is never inferred from an exit code.

After running out of memory, the same run continues as another attempt with a smaller batch size, if
its recipe allows. Its recipe is changed permanently and its history records the change, so that no
comparison uses a recipe the run was not trained with.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import ValidationError
from sqlalchemy import select as sql_select
from sqlalchemy.orm import defer
from sqlmodel import Session, col, func, select, update

from studio.db.session import current_time
from studio.db.states import LIVE, RunCommand, RunStatus
from studio.db.tables import Attempt, Run, RunEvent, Sample
from studio.methods import RECIPE_ADAPTER, AnyRecipe
from studio.protocols.events import (
    AlarmRaised,
    Checkpointed,
    Event,
    Failed,
    Finished,
    MetricsLogged,
    Paused,
    PhaseChanged,
    Resumed,
    Sampled,
    Started,
    Stopped,
)
from studio.protocols.remote_worker import NAME_PREFIX, is_remote
from studio.recipe.dotted_keys import merge
from studio.services.hardware import gpu_health
from studio.services.metrics import metric_store, metric_summaries
from studio.services.runs import runs, states
from studio.services.tasks import exit_diagnosis
from studio.services.tasks.exit_diagnosis import ProcessExit

SHRUNK = "shrunk"
"""The kind of the event that records a retry with a smaller batch size."""


def smaller_batch(recipe: AnyRecipe) -> dict[str, Any]:
    """Return the change to about half the batch size at the same effective batch; empty at 1."""
    optimisation = recipe.optimisation
    batch = optimisation.per_device_train_batch_size
    smaller = next((size for size in range(batch // 2, 0, -1) if batch % size == 0), None)
    if smaller is None:
        return {}
    accumulation = optimisation.gradient_accumulation_steps * batch // smaller
    return {
        "optimisation": {
            "per_device_train_batch_size": smaller,
            "gradient_accumulation_steps": accumulation,
        }
    }


def mark_for_retry(db: Session, run: Run, failure: Failed) -> bool:
    """Mark a failed run for a retry once its process is gone. Return whether it was marked."""
    if not run.status.is_live or run.status is RunStatus.STOPPING:
        return False
    if failure.code == "out_of_memory":
        can_shrink = run.recipe.recovery.smaller_batches and _smaller_recipe(run)
        if not can_shrink:
            return False
    elif failure.code != gpu_health.FAILED or not gpu_health.may_retry(db, run):
        return False
    run.error_code, run.error_message, run.error_hint = failure.code, failure.message, failure.hint
    return True


def is_marked_for_retry(run: Run) -> bool:
    return run.status.is_live and bool(run.error_code)


def requeue_marked(db: Session, run: Run) -> None:
    """Queue a marked run again, from its newest checkpoint if it has one."""
    if run.error_code == "out_of_memory":
        requeue_smaller(db, run)
        return
    details = {"because": run.error_message, "attempt": run.attempt}
    run.error_code = run.error_message = run.error_hint = ""
    run.resumes = True
    states.move(db, run, RunStatus.QUEUED, details)


def requeue_smaller(db: Session, run: Run) -> None:
    """Queue the run again with a smaller batch size, from its newest checkpoint if it has one."""
    old_size = run.recipe.optimisation.per_device_train_batch_size
    run.recipe = _smaller_recipe(run) or run.recipe
    optimisation = run.recipe.optimisation
    details = {
        "because": run.error_message,
        "attempt": run.attempt,
        "from": old_size,
        "to": optimisation.per_device_train_batch_size,
        "accumulation": optimisation.gradient_accumulation_steps,
    }
    run.error_code = run.error_message = run.error_hint = ""
    run.resumes = True
    states.record_event(db, run, SHRUNK, details)
    states.move(db, run, RunStatus.QUEUED, {"because": details["because"], "attempt": run.attempt})


def list_shrinks(db: Session, run_id: int) -> list[dict[str, Any]]:
    """Return the batch size reductions, oldest first: attempt, from, to, accumulation."""
    query = select(RunEvent).where(RunEvent.run_id == run_id, RunEvent.kind == SHRUNK)
    return [event.data for event in db.exec(query.order_by(col(RunEvent.id)))]


def _smaller_recipe(run: Run) -> AnyRecipe | None:
    """Return the recipe with a smaller batch size, or None if there is none."""
    change = smaller_batch(run.recipe)
    try:
        return (
            RECIPE_ADAPTER.validate_python(merge(run.recipe.model_dump(), change))
            if change
            else None
        )
    except ValidationError:  # more accumulation steps than the setting allows
        return None


LEASE = timedelta(seconds=30)
"""How long a worker may be silent before another one takes over its runs."""

REMOTE_LEASE = timedelta(minutes=2)
"""The same for a worker on another machine, whose network may fail for a while."""

LOST = "lost"
_CHECKPOINT_ALARMS = frozenset({"not_saved", "broken_checkpoint"})
"""Alarms about checkpoints."""


_RARELY_USED = ("recipe", "resolved", "estimate")
"""Large columns of a run that few of its events need."""


class LeaseLostError(Exception):
    """The attempt now belongs to another worker; nothing was changed."""


@dataclass(frozen=True, slots=True)
class AttemptOwner:
    worker: str
    attempt: int


def lease_end(db: Session, lease: timedelta) -> datetime:
    return current_time(db) + lease


@dataclass(frozen=True, slots=True)
class AttemptState:
    """What the worker asks about each of its attempts, again and again."""

    owner: AttemptOwner
    status: RunStatus
    asked: RunCommand | None
    events_offset: int


def load_states(db: Session, run_ids: Collection[int]) -> dict[int, AttemptState]:
    """Return the states of runs by their numbers; those that were deleted are missing."""
    columns: tuple[Any, ...] = (
        Run.id,
        Run.worker,
        Run.attempt,
        Run.status,
        Run.asked,
        Run.events_offset,
    )
    query = sql_select(*columns).where(col(Run.id).in_(run_ids))
    return {
        run_id: AttemptState(AttemptOwner(worker, attempt), *rest)
        for run_id, worker, attempt, *rest in db.execute(query)
    }


def require_owned(db: Session, run_id: int, owner: AttemptOwner) -> Run:
    """Return the run if the attempt is still the owner's.

    Raises:
        LeaseLostError: another worker has taken it over, or it was claimed again.
        NotFoundError: the run was deleted.

    """
    return load_owned(db, {run_id: owner})[run_id]


def load_owned(db: Session, owners: Mapping[int, AttemptOwner]) -> dict[int, Run]:
    """Return runs by their numbers if all attempts are still the owners'.

    Raises:
        LeaseLostError: another worker has taken one over, or it was claimed again.
        NotFoundError: a run was deleted.

    """
    # What few events need, and takes long to read, is read when it is asked for.
    deferred = [defer(getattr(Run, name)) for name in _RARELY_USED]
    query = select(Run).where(col(Run.id).in_(owners)).options(*deferred)
    found = {run.id: run for run in db.exec(query)}
    for run_id, owner in owners.items():
        if run_id not in found:
            raise runs.not_found(run_id)
        check_owner(run_id, AttemptOwner(found[run_id].worker, found[run_id].attempt), owner)
    return {run_id: found[run_id] for run_id in owners}


def check_owner(run_id: int, current: AttemptOwner, owner: AttemptOwner) -> None:
    """Check that an attempt is still the owner's.

    Raises:
        LeaseLostError: another worker has taken it over, or it was claimed again.

    """
    if current != owner:
        raise LeaseLostError(f"Run {run_id} no longer belongs to {owner.worker}.")


def extend_leases(db: Session, worker: str, lease: timedelta = LEASE) -> None:
    """Extend the leases of all live runs of a worker."""
    conditions = (col(Run.worker) == worker, col(Run.status).in_(LIVE))
    db.exec(update(Run).where(*conditions).values(lease_until=lease_end(db, lease)))


def list_abandoned(db: Session, worker: str, *, alone: bool) -> Sequence[Run]:
    """Return other workers' live runs whose lease has expired.

    If `alone`, the worker is the only one on its machine: it returns all of this machine, and none
    of other machines, whose workers may not have heard yet that the studio is back.
    """
    query = select(Run).where(col(Run.status).in_(LIVE), Run.worker != worker)
    if alone:
        query = query.where(~col(Run.worker).startswith(NAME_PREFIX))
    else:
        lease_over = col(Run.lease_until) < current_time(db)
        query = query.where(col(Run.lease_until).is_(None) | lease_over)
    return db.exec(query.order_by(col(Run.id))).all()


def renew_remote_leases(db: Session) -> None:
    """Give workers on other machines a new lease, because the studio itself was away."""
    remote = (col(Run.status).in_(LIVE), col(Run.worker).startswith(NAME_PREFIX))
    db.exec(update(Run).where(*remote).values(lease_until=lease_end(db, REMOTE_LEASE)))


def close_silent(db: Session, run: Run) -> bool:
    """Close an attempt whose worker is on another machine and silent: it cannot be adopted.

    Return False for a worker of this machine.
    """
    if not is_remote(run.worker):
        return False
    close_exited(db, run, ProcessExit(silent=True))
    return True


def take_over(db: Session, run: Run, worker: str, lease: timedelta = LEASE) -> AttemptOwner:
    """Make a worker the owner of an attempt that another worker has abandoned."""
    run.worker, run.lease_until = worker, lease_end(db, lease)
    return AttemptOwner(worker, run.attempt)


def record_process(run: Run, handle: str) -> None:
    """Store which process trains the run, so that another worker can find it."""
    run.handle = handle


def requeue(db: Session, run: Run) -> None:
    """Put a run back into the queue whose process was never started."""
    _close_attempt(db, run, LOST, None)
    states.move(db, run, RunStatus.QUEUED)


@dataclass(frozen=True, slots=True)
class NewEvents:
    """What a run's process wrote since the last time."""

    run: Run
    events: Iterable[Event]
    offset: int
    """The end of the last one in its file, in bytes."""


def apply_events(db: Session, run: Run, events: Iterable[Event], offset: int) -> None:
    """Apply the events that the run's process wrote since the last call."""
    apply_all_events(db, [NewEvents(run, events, offset)])


def apply_all_events(db: Session, batches: Iterable[NewEvents]) -> None:
    """Apply the events of many runs; what they have measured is stored together."""
    measured: list[metric_store.RowsOfRun] = []
    for batch in batches:
        run = batch.run
        rows: list[dict[str, Any]] = []
        for event in batch.events:
            _apply_event(db, run, event)
            if isinstance(event, MetricsLogged):
                rows.extend(metric_store.build_rows(run, event))
            elif isinstance(event, Started | Resumed | Finished | Stopped):
                metric_store.store(db, [(run, rows)])
                rows = []
                _update_summaries(db, run, event)
        measured.append((run, rows))
        run.events_offset = batch.offset
    metric_store.store(db, measured)


def close_exited(db: Session, run: Run, process_exit: ProcessExit) -> None:
    """Close an attempt whose process is gone, with or without a final event."""
    status_before, outcome, failed_by = run.status, "", run.error_code
    if status_before is RunStatus.STOPPING:
        run.error_code = run.error_message = run.error_hint = ""
        _move_as_requested(db, run)
    elif status_before.is_live and is_marked_for_retry(run):
        outcome = RunStatus.FAILED.value
        requeue_marked(db, run)
    elif status_before.is_live:
        outcome = LOST
        _handle_lost_process(db, run, process_exit)
    # A run asked to pause may be queued again by now.
    status = RunStatus.PAUSED if run.status is RunStatus.QUEUED else run.status
    failed_by = failed_by or run.error_code
    _close_attempt(db, run, outcome or status.value, process_exit.exit_code, failed_by)
    gpu_health.judge(db, run)


def fail(db: Session, run: Run, failure: Failed) -> None:
    """Mark a run as failed and record the cause."""
    details = {
        "code": failure.code,
        "message": failure.message,
        "hint": failure.hint,
        "phase": run.phase or ("training" if run.first_step_at else "starting"),
        "step": run.step,
        "attempt": run.attempt,
        "facts": failure.facts,
    }
    if states.move(db, run, RunStatus.FAILED, details):
        run.error_code, run.error_message, run.error_hint = (
            failure.code,
            failure.message,
            failure.hint,
        )


def list_attempts(db: Session, run_id: int) -> Sequence[Attempt]:
    """Return the attempts at a run, oldest first."""
    query = select(Attempt).where(Attempt.run_id == run_id)
    return db.exec(query.order_by(col(Attempt.number))).all()


_STATUS_AFTER = {RunCommand.PAUSE: RunStatus.PAUSED, RunCommand.DRAIN: RunStatus.QUEUED}
"""The status of a run after it stopped on request; otherwise it is cancelled."""


def _handle_lost_process(db: Session, run: Run, process_exit: ProcessExit) -> None:
    """Retry from the newest checkpoint, unless that would fail the same way."""
    cause = exit_diagnosis.diagnose(process_exit, exit_diagnosis.TRAINING, _describe_phase(run))
    query = select(func.count()).where(Attempt.run_id == run.id, Attempt.outcome == LOST)
    lost_attempts = db.exec(query).one() + 1
    if mark_for_retry(db, run, exit_diagnosis.to_failed_event(cause, 1)):
        requeue_marked(db, run)
        return
    if not cause.is_transient or lost_attempts >= cause.max_attempts:
        fail(db, run, exit_diagnosis.to_failed_event(cause, lost_attempts))
        return
    run.resumes = True
    states.move(db, run, RunStatus.QUEUED, {"because": cause.message, "attempt": run.attempt})


def _describe_phase(run: Run) -> str:
    if run.phase:
        return f" while {run.phase}"
    return f" at step {run.step}" if run.step else ""


def _close_attempt(
    db: Session, run: Run, outcome: str, exit_code: int | None, error_code: str = ""
) -> None:
    run.handle, run.lease_until, run.worker = "", None, ""
    conditions = (col(Attempt.run_id) == run.id, col(Attempt.number) == run.attempt)
    values = {
        "ended_at": datetime.now(UTC),
        "outcome": outcome,
        "exit_code": exit_code,
        "error_code": error_code,
    }
    db.exec(update(Attempt).where(*conditions).values(**values))


def _apply_event(db: Session, run: Run, event: Event) -> None:
    match event:
        case PhaseChanged(name=name):
            run.phase = name
        case Started():
            _apply_started(db, run, event)
        case MetricsLogged():
            run.step, run.epoch, run.tokens = event.step, event.epoch, event.tokens
            run.metrics = run.metrics | event.metrics
            run.first_step_at = run.first_step_at or (event.at if event.step else None)
            run.phase = ""
        case Sampled() | AlarmRaised():
            _store_sample_or_alarm(db, run, event)
        case Checkpointed(step=step):
            run.checkpoint_step = step
            states.record_event(db, run, event.kind, {"step": step})
        case Resumed(step=step):
            run.step = run.resumed_step = step
            conditions = (col(Attempt.run_id) == run.id, col(Attempt.number) == run.attempt)
            db.exec(update(Attempt).where(*conditions).values(from_step=step))
            states.record_event(db, run, event.kind, {"step": step, "attempt": run.attempt})
        case _:
            _apply_end(db, run, event)


def _apply_end(db: Session, run: Run, event: Event) -> None:
    match event:
        case Finished(metrics=metrics):
            run.metrics = run.metrics | metrics
            states.move(db, run, RunStatus.SUCCEEDED)
        case Stopped(step=step, kept=True, metrics=metrics):
            run.metrics = run.metrics | metrics
            states.move(db, run, RunStatus.SUCCEEDED, {"stopped_at": step})
        case Paused(step=step):
            _move_as_requested(db, run, step, default=RunStatus.PAUSED)
        case Stopped():
            _apply_stopped(db, run)
        case Failed() if not mark_for_retry(db, run, event):
            fail(db, run, event)


def _apply_stopped(db: Session, run: Run) -> None:
    """Close a run that stopped. Without a request, somebody sent its process a signal."""
    states.move(db, run, RunStatus.STOPPING)
    _move_as_requested(db, run)


def _move_as_requested(
    db: Session, run: Run, step: int | None = None, default: RunStatus = RunStatus.CANCELLED
) -> None:
    """Move a run to the status that its stop request implies."""
    status = _STATUS_AFTER.get(run.asked, RunStatus.CANCELLED) if run.asked else default
    run.resumes = status is not RunStatus.CANCELLED
    states.move(db, run, status, {} if step is None else {"step": step})


def _store_sample_or_alarm(db: Session, run: Run, event: Sampled | AlarmRaised) -> None:
    details = event.model_dump(exclude={"seq", "at", "kind"})
    if isinstance(event, AlarmRaised):
        # A checkpoint that failed to save is no evidence against a number format.
        states.record_event(
            db, run, event.code if event.code in _CHECKPOINT_ALARMS else runs.ALARM_KIND, details
        )
        return
    key = (event.stage, event.step, event.position)
    query = select(Sample).where(Sample.run_id == run.id)
    samples = {(sample.stage, sample.step, sample.position): sample for sample in db.exec(query)}
    if key in samples:
        # A later attempt answers again after its checkpoint: its answer replaces the earlier one.
        samples[key].answer, samples[key].computed_in = event.answer, event.computed_in
    else:
        db.add(Sample(run_id=run.id or 0, **details))


def _apply_started(db: Session, run: Run, event: Started) -> None:
    run.total_steps, run.resolved = event.total_steps, event.resolved
    run.started_at, run.phase = event.at, ""
    states.move(db, run, RunStatus.RUNNING)


def _update_summaries(db: Session, run: Run, event: Started | Resumed | Finished | Stopped) -> None:
    match event:
        case Started() if run.attempt > 1:
            metric_summaries.truncate(db, run.id or 0, None)
        case Resumed(step=step):
            metric_summaries.truncate(db, run.id or 0, step)
            run.metrics = metric_summaries.latest_values(db, run.id or 0)
        case Finished(metrics=final) | Stopped(metrics=final):
            metric_summaries.add_final_values(db, run.id or 0, final)
