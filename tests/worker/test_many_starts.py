"""Many runs that start at once: the worker follows the others meanwhile."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Engine

from studio.db.session import read_session, unit_of_work
from studio.services.runs import runs
from studio.services.tasks import tasks
from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.services.workers import workers
from studio.settings import Settings
from studio.worker import loop as worker_loop
from studio.worker.loop import WorkerLoop
from studio.worker.processes.launcher import LaunchSpec, LocalLauncher
from studio.worker.tasks import TaskCommands
from tests.support.factories import make_run
from tests.support.worker_processes import stop_processes

RUNS = 5


@dataclass(slots=True)
class NothingLauncher(LocalLauncher):
    """Starts no process; its attempts never end."""

    def submit(self, spec: LaunchSpec) -> str:
        return f"0@{spec.run_id}@{self.boot}"

    def poll(self, handle: str) -> ProcessExit | None:
        del handle
        return None


def live(engine: Engine) -> list[int]:
    with read_session(engine) as db:
        return [run.id or 0 for run in runs.list_live(db)]


@pytest.fixture
def loop(engine: Engine, settings: Settings) -> Iterator[WorkerLoop]:
    """Make a worker with a slot for each run, and one for the task."""
    task = (sys.executable, str(Path(__file__).parents[1] / "fakes" / "task.py"), "wait")
    launcher = NothingLauncher(wanted_slots=RUNS + 1)
    loop = WorkerLoop(engine, settings, launcher, commands=TaskCommands(task=task))
    yield loop
    stop_processes(loop)


def submit(engine: Engine) -> list[int]:
    with unit_of_work(engine) as db:
        tasks.enqueue(db, workers.SPEED_TASK_KIND, "this machine", {})
        return [make_run(db).id or 0 for _ in range(RUNS)]


def test_runs_start_in_order_and_before_tasks_once_time_is_up(
    engine: Engine, loop: WorkerLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_loop, "START_SECONDS", 0.0)
    ids = submit(engine)

    for number in range(1, RUNS + 1):
        loop.tick()
        assert live(engine) == ids[:number]
        assert loop.scheduler.slots == 0
    loop.tick()
    assert loop.scheduler.slots == 1


def test_all_runs_start_in_one_tick_while_there_is_time(
    engine: Engine, loop: WorkerLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_loop, "START_SECONDS", float("inf"))
    ids = submit(engine)

    loop.tick()
    assert live(engine) == ids
    assert loop.scheduler.slots == 1


def test_leases_are_extended_between_starts(
    engine: Engine, loop: WorkerLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_loop, "START_SECONDS", 0.0)
    monkeypatch.setattr(worker_loop, "HEARTBEAT_SECONDS", 0.0)
    submit(engine)

    loop.tick()
    leases = []
    for _ in range(3):
        loop.tick()
        with read_session(engine) as db:
            leases.append(runs.get(db, 1).lease_until)
    assert len(set(leases)) == 3
