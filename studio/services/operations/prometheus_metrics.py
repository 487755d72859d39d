"""Counts for Prometheus: runs by status, slots, waits and alerts, in a few queries."""

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import case
from sqlmodel import Session, col, func, select

from studio.db.outbox import Delivery, DeliveryStatus
from studio.db.session import count_bytes
from studio.db.sql_functions import seconds_between
from studio.db.states import LIVE, RunStatus
from studio.db.tables import Run, RunEvent, Worker
from studio.hardware_usage.usage import HardwareUsage
from studio.services.estimates import run_progress
from studio.services.hardware import usage_history
from studio.services.runs import runs
from studio.services.workers import workers

DURATION_BUCKETS = (60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 72 * 3600)
"""Upper bounds, in seconds, of the histogram of finished runs."""

MAX_ALARM_CODES = 50
"""More than the divergence guard has; limits the labels of an unexpected database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudioMetrics:
    runs: dict[RunStatus, int]
    held: int
    slots: int
    slots_used: int
    oldest_wait_seconds: float
    """Of runs that are not on hold; 0 if none waits."""
    worker_silence_seconds: float | None
    """Since the last heartbeat of any worker; None if there is no worker."""
    worker_failing: int
    """Steps of the workers' loops that currently fail."""
    worker_failures: int
    """Failed steps since the workers started."""
    durations: tuple[int, ...]
    """Number of finished runs up to each bound of `DURATION_BUCKETS`."""
    duration_count: int
    duration_seconds: float
    tokens: int
    alarms: dict[str, int]
    messages_waiting: int
    database_bytes: int
    machines: dict[str, HardwareUsage]
    """The newest load of each machine with a worker, by its name."""


def collect(db: Session, now: datetime | None = None) -> StudioMetrics:
    now = now or datetime.now(UTC)
    within, count, seconds = _duration_histogram(db)
    waiting = Run.status == RunStatus.QUEUED
    held = db.exec(select(func.count()).where(waiting, col(Run.is_held))).one()
    used = select(func.coalesce(func.sum(Run.slots), 0)).where(col(Run.status).in_(LIVE))
    unsent = select(func.count()).where(Delivery.status == DeliveryStatus.WAITING)
    return StudioMetrics(
        runs=_count_runs(db),
        held=held,
        slots=workers.count_slots(db),
        slots_used=int(db.exec(used).one()),
        oldest_wait_seconds=_oldest_wait(db, now),
        worker_silence_seconds=_worker_silence(db, now),
        worker_failing=sum(len(worker.failing) for worker in workers.list_alive(db)),
        worker_failures=sum(worker.failures for worker in workers.list_alive(db)),
        durations=within,
        duration_count=count,
        duration_seconds=seconds,
        tokens=int(db.exec(select(func.coalesce(func.sum(Run.tokens), 0))).one()),
        alarms=_count_alarms(db),
        messages_waiting=db.exec(unsent).one(),
        database_bytes=count_bytes(db),
        machines={
            machine.host: machine.usage
            for machine in usage_history.list_machines(db, usage_history.FRESH)
        },
    )


def _count_runs(db: Session) -> dict[RunStatus, int]:
    rows = db.exec(select(Run.status, func.count()).group_by(col(Run.status)))
    return dict.fromkeys(RunStatus, 0) | {RunStatus(status): count for status, count in rows}


def _oldest_wait(db: Session, now: datetime) -> float:
    waits = (Run.status == RunStatus.QUEUED, ~col(Run.is_held))
    oldest = db.exec(
        select(Run.created_at).where(*waits).order_by(col(Run.created_at)).limit(1)
    ).first()
    return run_progress.elapsed_seconds(oldest, now) if oldest else 0.0


def _worker_silence(db: Session, now: datetime) -> float | None:
    newest = select(Worker.beat_at).order_by(col(Worker.beat_at).desc()).limit(1)
    beat = db.exec(newest).first()
    return run_progress.elapsed_seconds(beat, now) if beat else None


def _duration_histogram(db: Session) -> tuple[tuple[int, ...], int, float]:
    is_finished = (col(Run.finished_at).is_not(None), col(Run.claimed_at).is_not(None))
    durations = select(seconds_between(col(Run.claimed_at), col(Run.finished_at)).label("took"))
    # OFFSET keeps databases from computing each run's seconds again for every bound.
    took = durations.where(*is_finished).offset(0).subquery().c.took
    within = (func.count(case((took <= bound, 1))) for bound in DURATION_BUCKETS)
    query = select(*within, func.count(), func.coalesce(func.sum(took), 0.0))  # type: ignore[call-overload] # more columns than it has types for
    *counts, count, seconds = db.exec(query).one()
    return tuple(map(int, counts)), int(count), float(seconds)


def _count_alarms(db: Session) -> dict[str, int]:
    code = col(RunEvent.data)["code"].as_string()
    query = select(code, func.count()).where(RunEvent.kind == runs.ALARM_KIND)
    commonest = query.group_by(code).order_by(func.count().desc()).limit(MAX_ALARM_CODES)
    return dict(db.exec(commonest).all())
