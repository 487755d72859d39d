"""The queue: which run starts next.

The order is strict: a run that needs more slots than are free blocks those behind it, so that
smaller runs never starve it. Only where a machine has GPUs of several kinds, a run that waits for
one kind lets those behind it pass that need another.

"""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlmodel import Session, col, func, select, update

from studio.db.states import LIVE, RunStatus
from studio.db.tables import Attempt, Run
from studio.errors import ConflictError
from studio.gpu_detection import Gpu, GpuKind
from studio.services.hardware import gpu_health
from studio.services.queue.gpu_pools import GpuPools
from studio.services.runs import attempts, runs, states
from studio.services.runs.attempts import LEASE

_RANK = func.coalesce(Run.rank, Run.id)


def claim(
    db: Session,
    worker: str,
    slots: int,
    lease: timedelta = LEASE,
    excluded: Collection[int] = (),
    pools: GpuPools | None = None,
) -> Run | None:
    """Claim the first queued run that is not excluded if slots are free; otherwise return None.

    With `pools`, it gets a GPU of them. Two workers never claim the same run: the update checks the
    status again.

    """
    found = _find_startable(db, worker, slots, excluded, pools)
    if found is None:
        return None
    run, gpu = found
    attempt = db.exec(
        update(Run)
        .where(col(Run.id) == run.id, col(Run.status) == RunStatus.QUEUED)
        .values(attempt=Run.attempt + 1, worker=worker)
        .returning(col(Run.attempt))
    ).first()
    if attempt is None:
        return None
    db.refresh(run)
    run.gpu = gpu.index if gpu else None
    run.lease_until = attempts.lease_end(db, lease)
    run.claimed_at, run.started_at, run.first_step_at = datetime.now(UTC), None, None
    states.move(db, run, RunStatus.STARTING, {"attempt": run.attempt})
    name = gpu.cuda_name if gpu else ""
    db.add(Attempt(run_id=run.id or 0, number=run.attempt, worker=worker, gpu=name))
    return run


def _find_startable(
    db: Session, worker: str, slots: int, excluded: Collection[int], pools: GpuPools | None
) -> tuple[Run, Gpu | None] | None:
    """Return the run that starts next, and the GPU that it gets; None if nothing can start."""
    query = _waiting_query().where(
        ~col(Run.is_held), col(Run.slots) <= slots, col(Run.id).not_in(excluded)
    )
    # Of one kind of GPU, as on a processor, only the first may start.
    is_first_only = pools is None or len(pools.kinds) <= 1
    free_slots: int | None = None
    waited_for = set[GpuKind]()
    for run in db.exec(query.limit(1) if is_first_only else query):
        if free_slots is None:
            free_slots = slots - count_used_slots(db, worker)
        if run.slots > free_slots:
            return None
        if pools is None:
            return run, None
        avoided = gpu_health.list_failed_on(db, run) if run.attempt else ()
        if gpu := pools.find_free(run, avoided):
            return run, gpu
        waited_for |= {*pools.choose_kinds(run)}
        if waited_for >= pools.kinds:
            return None
    return None


def count_used_slots(db: Session, worker: str) -> int:
    """Return how many slots of a worker are in use."""
    query = select(func.coalesce(func.sum(Run.slots), 0))
    return int(db.exec(query.where(col(Run.status).in_(LIVE), Run.worker == worker)).one())


def needs_gpu_of(db: Session, pools: GpuPools | None, lent: Collection[int | None]) -> bool:
    """Whether the next run waits for a GPU, and one of those that are lent could train it."""
    run = next_run(db)
    if run is None or pools is None or pools.find_free(run):
        return False
    kinds = pools.choose_kinds(run)
    return any(gpu.index in lent and gpu.kind in kinds for gpu in pools.hardware.gpus)


def next_run(db: Session) -> Run | None:
    """Return the run that starts next."""
    run: Run | None = db.exec(_waiting_query().where(~col(Run.is_held)).limit(1)).first()
    return run


def next_run_slots(db: Session) -> int:
    """Return how many slots the next run needs; 0 if none is queued."""
    run = next_run(db)
    return run.slots if run else 0


def is_any_waiting(db: Session) -> bool:
    """Whether a run is queued that may start."""
    query = select(Run.id).where(Run.status == RunStatus.QUEUED, ~col(Run.is_held))
    return db.exec(query.limit(1)).first() is not None


def list_waiting(db: Session, *, limit: int | None = None) -> Sequence[Run]:
    """Return the queued runs in the order in which they start."""
    waiting: Sequence[Run] = db.exec(_waiting_query().limit(limit)).all()
    return waiting


def count_waiting_by_priority(db: Session) -> dict[int, int]:
    query = select(Run.priority, func.count()).where(Run.status == RunStatus.QUEUED)
    return dict(db.exec(query.group_by(col(Run.priority))).all())


def positions(db: Session, listed: Sequence[Run]) -> dict[int | None, int]:
    """Return the position in the queue of those runs that are queued, by ID, counted from 1."""
    waiting = [run for run in listed if run.status is RunStatus.QUEUED]
    if len(waiting) <= 1:
        return {run.id: position(db, run) or 0 for run in waiting}
    ids = db.exec(_waiting_query().with_only_columns(col(Run.id)))
    return {run_id: place for place, run_id in enumerate(ids, start=1)}


def position(db: Session, run: Run) -> int | None:
    """Return a run's position in the queue, counted from 1; None if it is not queued."""
    if run.status is not RunStatus.QUEUED:
        return None
    rank = run.id if run.rank is None else run.rank
    same = (col(Run.priority) == run.priority) & (rank >= _RANK)
    ahead = same | (col(Run.priority) > run.priority)
    return db.exec(select(func.count()).where(Run.status == RunStatus.QUEUED, ahead)).one()


def hold(db: Session, run_id: int, *, is_held: bool) -> Run:
    """Hold a queued run even if slots become free, or release it."""
    run = _require_queued(db, run_id)
    if run.is_held is not is_held:
        run.is_held = is_held
        states.record_event(db, run, "held" if is_held else "released")
    return run


def set_priority(db: Session, run_id: int, priority: int) -> Run:
    """Set a queued run's priority; higher priorities start first."""
    run = _require_queued(db, run_id)
    if run.priority != priority:
        run.priority = priority
        states.record_event(db, run, "prioritised", {"priority": priority})
    return run


def move(db: Session, run_id: int, target_position: int) -> Run:
    """Move a run to a position, counted from 1, among the queued runs of its priority."""
    run = _require_queued(db, run_id)
    peers = [other for other in list_waiting(db) if other.priority == run.priority]
    ranks = [other.id if other.rank is None else other.rank for other in peers]
    peers.remove(run)
    peers.insert(max(target_position, 1) - 1, run)
    # Reassign the same ranks: no other run is affected.
    for other, rank in zip(peers, ranks, strict=True):
        other.rank = rank
    states.record_event(db, run, "moved", {"place": peers.index(run) + 1})
    return run


def _waiting_query() -> Any:  # noqa: ANN401 -- SQLModel's select has no nameable type
    return (
        select(Run).where(Run.status == RunStatus.QUEUED).order_by(col(Run.priority).desc(), _RANK)
    )


def _require_queued(db: Session, run_id: int) -> Run:
    run = runs.get(db, run_id)
    if run.status is not RunStatus.QUEUED:
        raise ConflictError(f"Run {run_id} is {run.status}; only a queued run can be moved.")
    return run
