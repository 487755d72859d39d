"""The load of each worker's machine in the last hour, and of each run's machine while it trained.

A worker adds its sample to the transaction of its heartbeat, every five seconds, which costs no
commit of its own: a commit wakes every open page. A file would need a second watcher in the web
process, and would not be part of a backup. Measured with 16 cores and a GPU: 2 ms of CPU time and
0.7 KB per sample.

A run keeps at most `MAX_POINTS` samples, however long it trains: once there are more, neighbours
are merged, and later ones are that much further apart.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby

from sqlmodel import Session, col, delete, func, select

from studio.db.tables import HardwareSample, Run, RunHardwareSample
from studio.hardware_usage.usage import HardwareUsage, merge

KEEP = timedelta(hours=1)
FRESH = timedelta(seconds=20)
"""A machine whose newest sample is older is no longer sampled."""

SAMPLE_SECONDS = 5.0
MAX_POINTS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    at: datetime
    usage: HardwareUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineHistory:
    """The samples of one machine, oldest first; never empty."""

    points: Sequence[Point]

    @property
    def newest(self) -> Point:
        return self.points[-1]

    @property
    def usage(self) -> HardwareUsage:
        return self.newest.usage

    @property
    def host(self) -> str:
        return self.usage.host


def record(db: Session, worker: str, point: Point) -> None:
    """Store a sample of a worker's machine, also for each run on it; delete what is too old."""
    db.exec(delete(HardwareSample).where(col(HardwareSample.at) < point.at - KEEP))
    db.add(HardwareSample(worker=worker, usage=point.usage, at=point.at))
    db.flush()
    ids = [run.run_id for run in point.usage.runs]
    # A run may have been deleted since; its sample must not fail the transaction.
    for run_id in db.exec(select(Run.id).where(col(Run.id).in_(ids))):
        _record_for_run(db, worker, run_id or 0, point)


def _record_for_run(db: Session, worker: str, run_id: int, point: Point) -> None:
    of_run = RunHardwareSample.run_id == run_id
    times = col(RunHardwareSample.at)
    first, last, count = db.exec(
        select(func.min(times), func.max(times), func.count()).where(of_run)
    ).one()
    if last is not None and (point.at - last).total_seconds() < _interval(point.at - first):
        return
    after = (HardwareSample.worker == worker, col(HardwareSample.at) > (last or point.at - KEEP))
    query = select(HardwareSample).where(*after).order_by(col(HardwareSample.at))
    usages = [sample.usage for sample in db.exec(query) if _has_run(sample.usage, run_id)]
    db.add(RunHardwareSample(run_id=run_id, usage=merge(usages), at=point.at))
    if count >= MAX_POINTS:
        db.flush()
        _merge_neighbours(db, run_id)


def _has_run(usage: HardwareUsage, run_id: int) -> bool:
    return any(run.run_id == run_id for run in usage.runs)


def _interval(elapsed: timedelta) -> float:
    """Return the least seconds between samples of a run that has trained for that long."""
    interval = SAMPLE_SECONDS
    while elapsed.total_seconds() / interval >= MAX_POINTS:
        interval *= 2
    # Heartbeats are not exactly five seconds apart.
    return min(interval, KEEP.total_seconds() / 2) - SAMPLE_SECONDS / 2


def _merge_neighbours(db: Session, run_id: int) -> None:
    query = select(RunHardwareSample).where(RunHardwareSample.run_id == run_id)
    rows = db.exec(query.order_by(col(RunHardwareSample.at))).all()
    for earlier, later in zip(rows[::2], rows[1::2], strict=False):
        later.usage = merge([earlier.usage, later.usage])
        db.delete(earlier)


def list_machines(db: Session, since: timedelta = KEEP) -> list[MachineHistory]:
    """Return the machines that are being sampled, by name, with their samples since then.

    Several workers on one machine sample it alike; only one of them counts.
    """
    now = datetime.now(UTC)
    query = select(HardwareSample).where(col(HardwareSample.at) > now - since)
    rows = db.exec(query.order_by(col(HardwareSample.worker), col(HardwareSample.at))).all()
    histories = [
        MachineHistory(points=_points(group)) for _, group in groupby(rows, lambda row: row.worker)
    ]
    fresh = [history for history in histories if history.newest.at > now - FRESH]
    by_host = {history.host: history for history in fresh}
    return [by_host[host] for host in sorted(by_host)]


def machine_of_run(db: Session, run_id: int, since: timedelta) -> MachineHistory | None:
    """Return the machine that a run trains on at present, with its samples since then."""
    machines = list_machines(db, since)
    return next((machine for machine in machines if _has_run(machine.usage, run_id)), None)


def list_run_points(db: Session, run_id: int) -> Sequence[Point]:
    """Return the samples that a run keeps, oldest first."""
    query = select(RunHardwareSample).where(RunHardwareSample.run_id == run_id)
    return _points(db.exec(query.order_by(col(RunHardwareSample.at))).all())


def newest_time(db: Session) -> datetime | None:
    """Return the time of the newest sample, by which a viewer notices the next one."""
    return db.exec(select(func.max(col(HardwareSample.at)))).one()


def _points(rows: Iterable[HardwareSample] | Iterable[RunHardwareSample]) -> Sequence[Point]:
    return [Point(at=row.at, usage=row.usage) for row in rows]
