"""What is asked for often is looked up in an index, never gathered from wide rows."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine
from sqlmodel import Session

from studio.db.session import read_session
from studio.db.states import RunStatus
from studio.services import recent_ends
from studio.services.metrics import metrics
from studio.services.operations import prometheus_metrics
from studio.services.runs import runs
from studio.services.runs.runs import RunFilter
from tests.support.sql_statements import Statement, record_statements

READS: dict[str, Callable[[Session], object]] = {
    "searched": lambda db: runs.newest(db, RunFilter(search="9"), limit=50),
    "counted": lambda db: runs.count(db, RunFilter(search="9")),
    "by status": lambda db: runs.count(db, RunFilter(search="9", status=RunStatus.FAILED)),
    "drawn": lambda db: metrics.load_curves(db, [1, 2], ["loss"]),
    "ended": lambda db: recent_ends.list_recent(db, datetime.now(UTC), ()),
    "census": prometheus_metrics.collect,
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_queries_never_scan_full_tables(engine: Engine, read: Callable[[Session], object]) -> None:
    with record_statements(engine) as statements, read_session(engine) as db:
        read(db)

    plans = [line for one in statements for line in plan(engine, one)]
    assert plans
    assert [line for line in plans if line in WHOLE] == []


WHOLE = {f"SCAN {table}" for table in ("run", "metric", "happening")}


def test_runs_that_ended_since_a_time_are_found_by_that_time(engine: Engine) -> None:
    with record_statements(engine) as statements, read_session(engine) as db:
        recent_ends.list_recent(db, datetime.now(UTC), ())

    plans = {line for one in statements for line in plan(engine, one) if "run USING" in line}
    searched = "SEARCH run USING COVERING INDEX run_by_end (status=? AND finished_at>?)"
    assert plans == {searched, "SEARCH run USING INTEGER PRIMARY KEY (rowid=?)"}


def plan(engine: Engine, one: Statement) -> list[str]:
    """Return what SQLite would do."""
    if one.statement is None:
        return []
    with engine.connect() as connection:
        steps = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {one.words}", one.values)
        return [step[3] for step in steps]
