"""Claims on PostgreSQL: each run once, in order, and never more than a worker's slots."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlmodel import col, select, update

from studio.db.session import current_time, read_session, unit_of_work
from studio.db.states import RunStatus
from studio.db.tables import Attempt, Run
from studio.errors import UnavailableError
from studio.services.queue import queue
from studio.services.runs import attempts
from tests.bench.postgres import add_runs
from tests.support.factories import make_run

RUNS, CLAIMERS, SLOTS = 10_000, 16, 8


def claim_all(engine: Engine, worker: str) -> list[int]:
    """Claim until no slot is free; return the ids in order."""
    claimed: list[int] = []
    while True:
        with unit_of_work(engine) as db:
            run = queue.claim(db, worker, SLOTS)
            if run is None:
                return claimed
            claimed.append(run.id or 0)


def test_each_run_is_claimed_once_in_order_and_within_slots(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        add_runs(db, RUNS)
        order = [run.id or 0 for run in queue.list_waiting(db)][: CLAIMERS * SLOTS]
    with ThreadPoolExecutor(CLAIMERS) as pool:
        names = [f"worker-{number}" for number in range(CLAIMERS)]
        claimed = list(pool.map(claim_all, [engine] * CLAIMERS, names))

    assert [len(ids) for ids in claimed] == [SLOTS] * CLAIMERS
    assert sorted(run_id for ids in claimed for run_id in ids) == sorted(order)
    assert [ids for ids in claimed if ids != sorted(ids, key=order.index)] == []
    with read_session(engine) as db:
        assert len(db.exec(select(Attempt.id)).all()) == len(order)


def test_workers_of_one_name_share_its_slots(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        add_runs(db, 50)
    with ThreadPoolExecutor(CLAIMERS) as pool:
        claimed = list(pool.map(claim_all, [engine] * CLAIMERS, ["same"] * CLAIMERS))

    assert sum(map(len, claimed)) == SLOTS


def test_large_run_is_not_passed_by_smaller_ones(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        small, large, last = (make_run(db, name) for name in ("small", "large", "last"))
        large.slots = 2
        ids = (small.id, large.id, last.id)
    with unit_of_work(engine) as db:
        first = queue.claim(db, "w", 2)
        assert first is not None
        assert (first.id, queue.claim(db, "w", 2)) == (ids[0], None)
    with unit_of_work(engine) as db:
        db.exec(update(Run).where(col(Run.id) == ids[0]).values(status=RunStatus.SUCCEEDED))
        second = queue.claim(db, "w", 2)
        assert second is not None
        assert second.id == ids[1]


def test_leases_follow_the_clock_of_the_database(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_run(db)
        before = current_time(db)
        run = queue.claim(db, "w", 1)
        assert run is not None
        assert run.lease_until is not None
        assert before <= run.lease_until - attempts.LEASE <= current_time(db)
        run.lease_until = current_time(db) - timedelta(seconds=1)
        db.flush()
        assert [one.id for one in attempts.list_abandoned(db, "other", alone=False)] == [run.id]


@pytest.mark.parametrize("is_writer", [True, False])
def test_writers_take_turns_and_readers_do_not_wait(engine: Engine, is_writer: bool) -> None:  # noqa: FBT001 -- a case
    """A second writer waits for the first, so that it reads what the first has written."""

    def impatient(connection: Any, _record: object) -> None:  # noqa: ANN401 -- psycopg's
        connection.execute("SET lock_timeout = 50")
        connection.commit()

    event.listen(engine, "connect", impatient)
    engine.dispose()
    session = unit_of_work if is_writer else read_session
    answer = ""
    with unit_of_work(engine) as db:
        make_run(db)
        db.flush()
        try:
            with session(engine) as other:
                answer = f"{len(other.exec(select(Run.id)).all())} runs"
        except UnavailableError as error:
            answer = error.message

    assert answer == ("The database is busy; nothing was saved." if is_writer else "0 runs")


def test_reader_sees_one_snapshot(engine: Engine) -> None:
    with read_session(engine) as reader:
        before = len(reader.exec(select(Run.id)).all())
        with unit_of_work(engine) as db:
            make_run(db)
        assert len(reader.exec(select(Run.id)).all()) == before


def test_times_are_in_utc(engine: Engine) -> None:
    with read_session(engine) as db:
        assert abs(current_time(db) - datetime.now(UTC)) < timedelta(minutes=1)
