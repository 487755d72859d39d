"""The queue: who is next, who waits, and what a person may change about it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine
from sqlmodel import Session

from studio.db.session import unit_of_work
from studio.db.states import RunStatus
from studio.db.tables import Worker
from studio.errors import ConflictError
from studio.services.queue import queue
from studio.services.runs import states
from studio.services.workers import workers
from tests.support.factories import make_run, make_running


def order(db: Session) -> list[str]:
    db.flush()
    return [run.name for run in queue.list_waiting(db)]


def test_oldest_run_is_claimed_first(db: Session) -> None:
    first, _second = make_run(db, "a"), make_run(db, "b")

    claimed = queue.claim(db, "w", slots=1)
    assert claimed is first
    assert (first.status, first.attempt, first.worker) == (RunStatus.STARTING, 1, "w")


def test_claims_never_exceed_slots(db: Session) -> None:
    for name in ("a", "b", "c"):
        make_run(db, name)

    claims = [queue.claim(db, "w", slots=2) for _ in range(3)]
    assert [run.name if run else None for run in claims] == ["a", "b", None]


def test_workers_never_claim_same_run(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for i in range(20):
            make_run(db, f"run {i}")

    def claim_all(worker: int) -> list[int | None]:
        claimed: list[int | None] = []
        for _ in range(20):
            with unit_of_work(engine) as db:
                run = queue.claim(db, f"w{worker}", slots=20)
            claimed += [run.id] if run else []
        return claimed

    with ThreadPoolExecutor(4) as pool:
        claimed = [run for part in pool.map(claim_all, range(4)) for run in part]
    assert sorted(claimed, key=lambda run: run or 0) == list(range(1, 21))


def test_queue_positions_start_at_one(db: Session) -> None:
    waiting = [make_run(db, name) for name in ("a", "b")]
    live = make_running(db, "c")

    assert [queue.position(db, run) for run in (*waiting, live)] == [1, 2, None]


def test_highest_priority_run_starts_first(db: Session) -> None:
    make_run(db, "a")
    queue.set_priority(db, make_run(db, "b").id or 0, 5)

    assert order(db) == ["b", "a"]


@pytest.mark.parametrize(
    ("place", "expected"), [(1, ["c", "a", "b"]), (2, ["a", "c", "b"]), (9, ["a", "b", "c"])]
)
def test_queued_run_can_be_moved(db: Session, place: int, expected: list[str]) -> None:
    ids = [make_run(db, name).id or 0 for name in "abc"]
    queue.move(db, ids[2], place)

    assert order(db) == expected


def test_new_run_is_queued_last_after_move(db: Session) -> None:
    ids = [make_run(db, name).id or 0 for name in "abc"]
    queue.move(db, ids[0], 3)
    make_run(db, "d")

    assert order(db) == ["b", "c", "a", "d"]


def test_held_run_does_not_block_queue(db: Session) -> None:
    held, free = make_run(db, "a"), make_run(db, "b")
    queue.hold(db, held.id or 0, is_held=True)

    assert [queue.claim(db, "w", slots=2), queue.claim(db, "w", slots=2)] == [free, None]


def test_released_run_is_claimed_next(db: Session) -> None:
    run = make_run(db)
    queue.hold(db, run.id or 0, is_held=True)
    queue.hold(db, run.id or 0, is_held=False)

    assert queue.claim(db, "w", slots=1) is run


def test_large_run_is_not_starved_by_small_runs(db: Session) -> None:
    make_run(db, "first")
    large, small = make_run(db, "large"), make_run(db, "small")
    large.slots = 2
    queue.claim(db, "w", slots=2)

    assert queue.claim(db, "w", slots=2) is None
    assert (large.status, small.status) == (RunStatus.QUEUED, RunStatus.QUEUED)


def test_run_too_large_for_worker_is_skipped(db: Session) -> None:
    large, small = make_run(db, "large"), make_run(db, "small")
    large.slots = 8

    assert queue.claim(db, "w", slots=2) is small


def test_slots_are_freed_when_run_ends(db: Session) -> None:
    first = make_run(db, "a")
    second = make_run(db, "b")
    queue.claim(db, "w", slots=1)
    states.move(db, first, RunStatus.FAILED)
    db.flush()

    assert queue.claim(db, "w", slots=1) is second


def test_only_queued_runs_can_be_moved(db: Session) -> None:
    run = make_running(db)
    with pytest.raises(ConflictError) as refused:
        queue.move(db, run.id or 0, 1)

    assert refused.value.message == "Run 1 is running; only a queued run can be moved."


def test_deregistered_worker_slots_are_not_counted(db: Session) -> None:
    workers.heartbeat(db, Worker(name="w", pid=1, slots=2))
    assert workers.count_slots(db) == 2

    workers.deregister(db, "w")
    assert workers.count_slots(db) == 0
