"""What the worker does to runs: claim, launch, follow, settle, recover.

Every change is one short transaction. Success is told by the run's own last event, never guessed
from an exit code.
"""

import signal
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlmodel import Session, col, delete, func, insert, select, update

from studio.db.tables import LIVE, Metric, Run, RunStatus, Sample, Worker
from studio.events import (
    NO_ROOM,
    NO_ROOM_EXIT,
    Alarmed,
    Event,
    Failed,
    Finished,
    Phase,
    Progressed,
    Sampled,
    Started,
    Stopped,
)
from studio.services import runs

SILENCE = timedelta(seconds=15)
"""A worker that was not heard of for three beats is taken for gone."""


_ELSEWHERE = Failed(
    code="elsewhere",
    message="It was training when the backup was made that it comes from.",
    hint="Run it again here.",
)
"""Restoring forgets the processes of the runs that were live: they belong to another home."""


def claim(db: Session, worker: str, slots: int) -> Run | None:
    """Take the oldest queued run if a slot is free, or None. Two workers never take the same."""
    used = select(func.count()).select_from(Run).where(col(Run.status).in_(LIVE)).scalar_subquery()
    oldest = (
        select(Run.id)
        .where(Run.status == RunStatus.QUEUED, used < slots)
        .order_by(col(Run.id))
        .limit(1)
        .scalar_subquery()
    )
    claimed = db.exec(
        update(Run)
        .where(col(Run.id) == oldest, col(Run.status) == RunStatus.QUEUED)
        .values(
            status=RunStatus.STARTING,
            worker=worker,
            attempt=Run.attempt + 1,
            claimed_at=datetime.now(UTC),
        )
        .returning(col(Run.id))
    ).first()
    if claimed is None:
        return None
    run = runs.get(db, claimed[0])
    runs.note(db, run, RunStatus.STARTING.value, {"attempt": run.attempt})
    return run


def waiting(db: Session) -> Sequence[Run]:
    """Return the queued runs in the order in which they will start."""
    query = select(Run).where(Run.status == RunStatus.QUEUED).order_by(col(Run.id))
    return db.exec(query).all()


def position(db: Session, run: Run) -> int | None:
    """Return how many runs start before this one, plus one; None when it does not wait."""
    if run.status is not RunStatus.QUEUED:
        return None
    ahead = select(func.count()).where(Run.status == RunStatus.QUEUED, col(Run.id) <= run.id)
    return db.exec(ahead).one()


def launched(run: Run, pid: int, pid_started: float) -> None:
    """Remember which process trains the run, so that another worker can find it."""
    run.pid, run.pid_started = pid, pid_started


def give_back(db: Session, run: Run) -> None:
    """Return a run whose process was never made to the queue."""
    if runs.move(db, run, RunStatus.QUEUED):
        run.worker = ""


def follow(db: Session, run: Run, events: Iterable[Event], offset: int) -> None:
    """Bring a run up to date with what its process has said since last time."""
    numbers: list[dict[str, Any]] = []
    for event in events:
        _apply(db, run, event)
        if isinstance(event, Progressed):
            numbers.extend(_rows(run, event))
    if numbers:
        db.exec(insert(Metric), params=numbers)
    run.events_offset = offset


def settle(db: Session, run: Run, exit_code: int | None) -> None:
    """Close a run whose process is gone, whether or not it said goodbye.

    `exit_code` is None when the process was not our child, so nobody can know it.
    """
    is_from_elsewhere = run.pid is None and exit_code is None
    run.pid = run.pid_started = None
    if run.status.is_final:
        return
    if run.status is RunStatus.STOPPING:
        runs.move(db, run, RunStatus.CANCELLED)
        return
    why = obituary("training", "lower the batch size, then try again", exit_code)
    fail(db, run, _ELSEWHERE if is_from_elsewhere else why)


def fail(db: Session, run: Run, why: Failed) -> None:
    if runs.move(db, run, RunStatus.FAILED):
        run.error_code, run.error_message, run.error_hint = why.code, why.message, why.hint


def beat(db: Session, worker: Worker) -> None:
    """Say that a worker is alive, and forget those that were not heard of for long."""
    db.exec(delete(Worker).where(col(Worker.beat_at) < datetime.now(UTC) - 4 * SILENCE))
    db.merge(worker)


def retire(db: Session, name: str) -> None:
    """Say that a worker has ended of its own will."""
    db.exec(delete(Worker).where(col(Worker.name) == name))


def workers(db: Session) -> Sequence[Worker]:
    """Return the workers heard of lately."""
    query = select(Worker).where(col(Worker.beat_at) > datetime.now(UTC) - SILENCE)
    return db.exec(query.order_by(col(Worker.name))).all()


def slots(db: Session) -> int:
    """Return how many runs the living workers can train at once."""
    return sum(worker.slots for worker in workers(db))


def _apply(db: Session, run: Run, event: Event) -> None:
    match event:
        case Phase(name=name):
            run.phase = name
        case Started():
            _start(db, run, event)
        case Progressed():
            run.step, run.epoch, run.tokens = event.step, event.epoch, event.tokens
            run.metrics = run.metrics | event.metrics
            run.first_step_at = run.first_step_at or (event.at if event.step else None)
            run.phase = ""
        case Sampled() | Alarmed():
            _keep(db, run, event)
        case Finished(metrics=metrics):
            run.metrics = run.metrics | metrics
            runs.move(db, run, RunStatus.SUCCEEDED)
        case Stopped():
            _stopped(db, run)
        case Failed():
            fail(db, run, event)


def _keep(db: Session, run: Run, event: Sampled | Alarmed) -> None:
    told = event.model_dump(exclude={"seq", "at", "kind"})
    if isinstance(event, Alarmed):
        runs.note(db, run, runs.ALARM, told)
    else:
        db.add(Sample(run_id=run.id or 0, **told))


def _start(db: Session, run: Run, event: Started) -> None:
    run.total_steps, run.resolved = event.total_steps, event.resolved
    run.started_at, run.phase = event.at, ""
    runs.move(db, run, RunStatus.RUNNING)


def _stopped(db: Session, run: Run) -> None:
    """Close a run that stopped; unasked, it was told so from outside, by a person with `kill`."""
    if not runs.move(db, run, RunStatus.CANCELLED):
        runs.move(db, run, RunStatus.STOPPING)
        runs.move(db, run, RunStatus.CANCELLED)


def _rows(run: Run, event: Progressed) -> Iterable[dict[str, Any]]:
    place = {
        "run_id": run.id,
        "step": event.step,
        "epoch": event.epoch,
        "tokens": event.tokens,
        "seconds": event.seconds,
    }
    for key, value in event.metrics.items():
        yield place | {"key": key} | split(value)


def split(value: float) -> dict[str, Any]:
    """Part a number into the finite value and the name of the non-finite one."""
    finite = abs(value) < float("inf")  # false for NaN, too
    return {"value": value if finite else None, "non_finite": "" if finite else str(value)}


def obituary(work: str, remedy: str, exit_code: int | None) -> Failed:
    """Say how a process ended that did not say so itself, and what helps where memory ran out."""
    if exit_code == NO_ROOM_EXIT:
        return NO_ROOM
    if exit_code == -signal.SIGKILL:
        return Failed(
            code="killed",
            message=f"The {work} process was killed.",
            hint=f"The machine may have run out of memory: {remedy}.",
        )
    told = "" if exit_code is None else f" (exit code {exit_code})"
    return Failed(
        code="died",
        message=f"The {work} process ended without a word{told}.",
        hint="The last lines of its log may say why.",
    )
