"""What the studio asks of its database could be asked of Postgres as well.

What SQLite alone knows stands in `studio/db` and in the migrations: pragmas, when a transaction
begins, copies of a moment, the watch for commits. The rest is written in SQLAlchemy's words.
"""

import ast
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Dialect, Engine, FunctionElement, TextClause
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql import visitors

from studio.db.outbox import Channel
from studio.db.session import unit_of_work
from studio.db.tables import Worker
from studio.protocols.events import (
    AlarmRaised,
    Checkpointed,
    Failed,
    Finished,
    Resumed,
    Sampled,
    Started,
)
from studio.services.notifications import deliveries
from studio.services.queue import queue
from studio.services.runs import attempts
from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.services.workers import workers
from studio.settings import Settings
from studio.web.app import create_app
from studio.worker.sweep_scheduler import SweepScheduler
from tests.support.factories import make_recipe, metrics_event
from tests.support.source_files import MODULES, ROOT, name_of, nodes
from tests.support.sql_statements import Statement, record_statements

KNOWN = {"avg", "coalesce", "count", "floor", "length", "lower", "max", "min", "sum"}
"""Functions that both databases have, and mean the same by."""

OURS = {"holds", "json_text", "seconds_between"}
"""Functions that `studio/db` writes for each."""

POSTGRES: Dialect = postgresql.dialect()  # type: ignore[no-untyped-call] # upstream's own
BEGINNINGS = {"BEGIN", "BEGIN IMMEDIATE"}
RECIPE = make_recipe().model_dump(mode="json")

PAGES = (
    *(
        "/",
        "/?q=9+status:failed&after=99",
        "/?group=precision&sort=-loss.best&base=1",
        "/queue",
        "/compare?runs=1,3",
        "/settings",
        "/metrics",
    ),
    *("/runs/1", "/runs/1/parts/history", "/runs/3", "/experiments/1", "/reports/precision/1"),
    *(f"/runs/1/{tab}" for tab in ("charts", "answers", "numerics", "files", "details")),
    *("/runs/1/broken?step=2", "/compare?runs=1,3&saved=1"),
    *("/sweeps", "/sweeps/1"),
    "/compare?runs=1,3&differs=1&blind=1",
)
CALLS = (
    *(
        "runs",
        "runs?search=9&status=failed&after=99",
        "runs?q=tag:a+-learning_rate<1+created>7d+has:nan+loss.min<9+duration>1h&sort=loss.smoothed",
        "fields",
        "views",
        "runs/1",
        "runs/1/events",
        "queue",
        "studies",
    ),
    *("compare/curves?runs=1,3&keys=loss&x=relative_step", "comparisons"),
    *("compare/curves?runs=1,3&keys=loss&x=tokens&buckets=2", "compare/curves?runs=1,3&x=loss"),
    *("runs/1/metrics?buckets=2&x=tokens", "runs/1/metrics?buckets=2", "runs/1/manifest", "models"),
    *("runs/1/attempts", "runs/1/exports", "compare?runs=1,3", "deliveries", "experiments"),
    *("runs/1/samples", "studies/1", "sweeps", "sweeps/1", "datasets", "datasets/1"),
)


@pytest.fixture
def journey(engine: Engine, settings: Settings) -> list[Statement]:
    """Gather all that is asked while runs live and die, and somebody looks at everything."""
    client = TestClient(create_app(engine, settings))
    with record_statements(engine) as found:
        for step in (_submit, _train, _lose, _look):
            step(engine, client)
    return found


def _submit(engine: Engine, client: TestClient) -> None:
    new = {"name": "first", "recipe": RECIPE}
    for _ in range(2):
        client.post("/api/v1/runs", json=new, headers={"Idempotency-Key": "k"}).raise_for_status()
    kept = {"name": "both", "query": "runs=1,3"}
    client.post("/api/v1/comparisons", json=kept).raise_for_status()
    study = {"modes": ["fp32", "bf16"], "seeds": 1}
    client.post("/api/v1/experiments/1/studies", json=study).raise_for_status()
    space = {"adapter.r": {"values": [4, 8]}}
    sweep = {"experiment_id": 1, "space": space, "strategy": "tpe", "count": 2, "is_pruning": True}
    client.post("/api/v1/sweeps", json=sweep).raise_for_status()
    SweepScheduler(engine, Path(engine.url.database or "").parent / "sweeps").tick()
    changed = {"place": 1, "priority": 1, "name": "renamed", "is_held": False}
    client.patch("/api/v1/runs/1", json=changed).raise_for_status()
    with unit_of_work(engine) as db:
        workers.heartbeat(db, Worker(name="w", pid=1, slots=2))
        deliveries.enqueue_test(db, Channel.EMAIL)


def _train(engine: Engine, _client: TestClient) -> None:
    alarm = AlarmRaised(code="zero_loss", message="Nothing is learnt.", hint="", step=2)
    with unit_of_work(engine) as db:
        run = queue.claim(db, "w", 2, excluded=[99])
        assert run is not None
        told = [
            metrics_event(1, loss=2.0),
            metrics_event(2, loss=math.nan),
            metrics_event(3, loss=1.0),
        ]
        sampled = Sampled(stage="after", step=3, position=0, prompt="", reference="", answer="")
        saved = Checkpointed(step=3, bytes=1, seconds=0.1)
        attempts.apply_events(db, run, [Started(total_steps=3, resolved={}), *told, alarm], 1)
        attempts.apply_events(db, run, [sampled, saved, Finished(metrics={})], 2)
        attempts.close_exited(db, run, ProcessExit(exit_code=0))


def _lose(engine: Engine, client: TestClient) -> None:
    with unit_of_work(engine) as db:
        run = queue.claim(db, "w", 2)
        assert run is not None
        attempts.extend_leases(db, "w")
        list(attempts.list_abandoned(db, "other", alone=False))
        attempts.apply_events(db, run, [Resumed(step=1, attempt=1), metrics_event(1, loss=1.0)], 1)
        attempts.close_exited(db, run, ProcessExit(exit_code=-9))
        again = queue.claim(db, "w", 2)
        assert again is run
        attempts.apply_events(
            db, run, [metrics_event(1, loss=1.0), Failed(code="x", message="No.")], 2
        )
        attempts.close_exited(db, run, ProcessExit(exit_code=1))
    client.post(f"/api/v1/runs/{run.id}/retry", json={"from": "start"}).raise_for_status()
    client.post(f"/api/v1/runs/{run.id}/cancel").raise_for_status()
    client.delete(f"/api/v1/runs/{run.id}").raise_for_status()


def _look(_engine: Engine, client: TestClient) -> None:
    rating = "/api/v1/runs/1/samples/0/rating"
    client.put(rating, json={"score": 4}).raise_for_status()
    client.delete(rating).raise_for_status()
    client.post("/samples/1/rating", data={"score": 4}).raise_for_status()
    for path in (*PAGES, *(f"/api/v1/{call}" for call in CALLS)):
        assert client.get(path).is_success, path


@pytest.mark.slow
def test_every_query_compiles_for_postgres(journey: list[Statement]) -> None:
    meant = [one.statement for one in journey if one.statement is not None]

    for statement in meant:
        assert str(statement.compile(dialect=POSTGRES))
    functions = {
        part.name
        for statement in meant
        for part in visitors.iterate(statement)
        if isinstance(part, FunctionElement)
    }
    assert functions - OURS <= KNOWN, "Write it in studio/db, for each database in its own way."
    assert {"seconds_between", "avg"} <= functions


@pytest.mark.slow
def test_no_raw_sql_is_executed(journey: list[Statement]) -> None:
    written = {one.words for one in journey if one.statement is None}

    assert written == BEGINNINGS
    assert [one.words for one in journey if isinstance(one.statement, TextClause)] == []


def test_only_db_package_uses_raw_sql_or_sqlite() -> None:
    fenced = ROOT / "studio" / "db"
    found = [
        f"{name_of(path)}: {name}"
        for path in MODULES
        if not path.is_relative_to(fenced)
        for name in _spoken(path)
    ]

    assert found == [], "Put it into studio/db."


def _spoken(path: Path) -> Iterator[str]:
    """Name what a module uses that writes SQL by hand, or is SQLite's own."""
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sqlalchemy"):
            yield from (one.name for one in node.names if one.name in {"text", "literal_column"})
        if isinstance(node, ast.Attribute) and node.attr in {"exec_driver_sql", "raw_connection"}:
            yield node.attr
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if "sqlite3" in one.name)
