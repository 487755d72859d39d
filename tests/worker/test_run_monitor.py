"""Many runs that are followed at once: what they share, and what must stay apart."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from sqlalchemy import Engine, event

from studio.db.session import read_session, unit_of_work
from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.protocols.events import Event, MetricsLogged, Started
from studio.protocols.run_dir import RunDir
from studio.services.metrics import metrics
from studio.services.runs import runs
from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.settings import Settings
from studio.worker import run_monitor
from studio.worker.fault_isolation import MAX_FAILURES
from studio.worker.loop import WorkerLoop
from studio.worker.processes.launcher import LaunchSpec, LocalLauncher
from tests.support.factories import make_run

RUNS = 8
TOO_LARGE = 2**70
"""A step that no database can store."""


@dataclass(slots=True)
class NothingLauncher(LocalLauncher):
    """Starts no process; its attempts end once they are killed."""

    killed: frozenset[str] = frozenset()

    def submit(self, spec: LaunchSpec) -> str:
        return f"0@{spec.run_id}@{self.boot}"

    def poll(self, handle: str) -> ProcessExit | None:
        return ProcessExit(exit_code=-9) if handle in self.killed else None

    def kill(self, handle: str) -> None:
        self.killed |= {handle}


@pytest.fixture
def loop(engine: Engine, settings: Settings) -> WorkerLoop:
    """Return a worker that trains many runs, all of which have started."""
    with unit_of_work(engine) as db:
        for _ in range(RUNS):
            make_run(db)
    loop = WorkerLoop(engine, settings, NothingLauncher(wanted_slots=RUNS))
    loop.adopt(alone=True)
    while len(loop.monitored) < RUNS:
        loop.tick()
    for number in loop.monitored:
        write(loop, number, Started(total_steps=9, resolved={}))
    follow(loop)
    assert {run.status for run in rows(loop)} == {RunStatus.RUNNING}
    return loop


def write(loop: WorkerLoop, number: int, *events: Event) -> None:
    for one in events:
        RunDir(loop.settings.runs / str(number)).events.append(one)


def measured(step: int) -> MetricsLogged:
    return MetricsLogged(step=step, epoch=0.1, tokens=step, seconds=1.0, metrics={"loss": 2.0})


def follow(loop: WorkerLoop) -> None:
    loop.run_monitor.follow(loop.settings)


def rows(loop: WorkerLoop) -> list[Run]:
    with read_session(loop.engine) as db:
        return [runs.get(db, number) for number in range(1, RUNS + 1)]


def steps(loop: WorkerLoop, number: int) -> list[int]:
    with read_session(loop.engine) as db:
        return [row.step for row in metrics.load_rows_after(db, number, 0)]


@contextmanager
def counted(engine: Engine) -> Iterator[dict[str, int]]:
    """Count the statements and the commits of the worker."""
    counts = {"statements": 0, "commits": 0}

    def add(name: str) -> None:
        counts[name] += 1

    def execute(*_arguments: object) -> None:
        add("statements")

    def commit(*_arguments: object) -> None:
        add("commits")

    event.listen(engine, "before_cursor_execute", execute)
    event.listen(engine, "commit", commit)
    try:
        yield counts
    finally:
        event.remove(engine, "before_cursor_execute", execute)
        event.remove(engine, "commit", commit)


def test_runs_without_news_take_one_read(loop: WorkerLoop) -> None:
    with counted(loop.engine) as few:
        follow(loop)

    assert few == {"statements": 1 + begins(loop), "commits": 0}


def begins(loop: WorkerLoop) -> int:
    """Return how many statements begin a transaction: on a server, the driver begins it."""
    return int(loop.engine.dialect.name == "sqlite")


def test_events_of_many_runs_are_stored_in_one_transaction(loop: WorkerLoop) -> None:
    for number in loop.monitored:
        write(loop, number, measured(1), measured(2))
    with counted(loop.engine) as counts:
        follow(loop)

    assert counts["commits"] == 1
    assert {tuple(steps(loop, run.id or 0)) for run in rows(loop)} == {(1, 2)}
    assert {(run.step, run.metrics["loss"]) for run in rows(loop)} == {(2, 2.0)}


def test_run_whose_events_cannot_be_stored_stops_no_other(loop: WorkerLoop) -> None:
    for number in loop.monitored:
        write(loop, number, measured(1))
    write(loop, 3, measured(TOO_LARGE))
    for _ in range(MAX_FAILURES + 1):
        follow(loop)

    stored = {run.id: steps(loop, run.id or 0) for run in rows(loop)}
    assert stored == {number: [] if number == 3 else [1] for number in range(1, RUNS + 1)}
    assert [run.id for run in rows(loop) if run.status is RunStatus.FAILED] == [3]
    assert sorted(loop.monitored) == [1, 2, 4, 5, 6, 7, 8]
    assert loop.isolation.failing_steps() == []


def test_failing_run_does_not_make_others_be_stored_apart(loop: WorkerLoop) -> None:
    write(loop, 3, measured(TOO_LARGE))
    follow(loop)
    for number in loop.monitored:
        write(loop, number, measured(1))
    with counted(loop.engine) as counts:
        follow(loop)

    assert counts["commits"] == 1
    assert [steps(loop, number) for number in (2, 3, 4)] == [[1], [], [1]]


def test_runs_left_for_the_next_tick_come_first(
    loop: WorkerLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_monitor, "STORED_TOGETHER", 3)
    monkeypatch.setattr(run_monitor, "STORE_SECONDS", 0.0)
    stored, behind = [], []
    for step in (1, 2, 3):
        for number in loop.monitored:
            write(loop, number, measured(step))
        follow(loop)
        stored.append([run.step for run in rows(loop)])
        behind.append(loop.run_monitor.is_behind)

    assert stored == [
        [1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 2, 2, 2, 0, 0],
        [3, 1, 1, 2, 2, 2, 3, 3],
    ]
    assert behind == [True] * 3
    follow(loop)
    follow(loop)
    assert not loop.run_monitor.is_behind
    assert {run.step for run in rows(loop)} == {3}


def test_failures_of_a_run_that_is_left_for_later_still_count(
    loop: WorkerLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_monitor, "STORED_TOGETHER", 1)
    monkeypatch.setattr(run_monitor, "STORE_SECONDS", 0.0)
    write(loop, 3, measured(TOO_LARGE))
    for step in range(1, RUNS * (MAX_FAILURES + 1)):
        write(loop, 1, measured(step))
        follow(loop)

    assert [run.id for run in rows(loop) if run.status is RunStatus.FAILED] == [3]


def test_run_that_another_worker_took_over_is_let_go(loop: WorkerLoop) -> None:
    with unit_of_work(loop.engine) as db:
        runs.get(db, 3).worker = "another"
        runs.get(db, 5).attempt += 1
    for number in list(loop.monitored):
        write(loop, number, measured(1))
    follow(loop)

    stored = {run.id: steps(loop, run.id or 0) for run in rows(loop)}
    assert stored == {number: [] if number in {3, 5} else [1] for number in range(1, RUNS + 1)}
    assert sorted(loop.monitored) == [1, 2, 4, 6, 7, 8]


def test_run_taken_over_meanwhile_keeps_its_events_for_the_other(loop: WorkerLoop) -> None:
    """Another worker takes a run over after this one has looked, and before it stores."""
    for number in list(loop.monitored):
        write(loop, number, measured(1))
    due = loop.run_monitor._find_due(loop.settings)
    assert len(due) == RUNS
    with unit_of_work(loop.engine) as db:
        runs.get(db, 3).worker = "another"
    loop.run_monitor._store_due(due, loop.settings)

    stored = {run.id: steps(loop, run.id or 0) for run in rows(loop)}
    assert stored == {number: [] if number == 3 else [1] for number in range(1, RUNS + 1)}
    assert 3 not in loop.monitored


def test_process_of_a_deleted_run_is_killed(loop: WorkerLoop) -> None:
    handle = loop.monitored[3].handle
    with unit_of_work(loop.engine) as db:
        runs.get(db, 3).status = RunStatus.FAILED
    with unit_of_work(loop.engine) as db:
        runs.delete(db, 3, loop.settings.runs)
    follow(loop)

    assert sorted(loop.monitored) == [1, 2, 4, 5, 6, 7, 8]
    assert loop.launcher.poll(handle) is not None
