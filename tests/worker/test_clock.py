"""The wall clock is set, forwards or back by an hour: nothing is lost, and nothing done twice."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import Session, SQLModel, select

from studio.db.session import read_session, unit_of_work
from studio.db.states import RunStatus
from studio.db.tables import Attempt, Run, Worker
from studio.processes.start_time import process_start_time
from studio.services.estimates import run_progress
from studio.services.operations import prometheus_metrics
from studio.services.runs import attempts, runs
from studio.settings import Settings
from studio.web.app import create_app
from studio.worker.loop import WorkerLoop
from studio.worker.processes.launcher import LocalLauncher
from tests.support.factories import make_run
from tests.support.waiting import wait_until

FAKE = str(Path(__file__).parents[1] / "fakes" / "runner.py")
HOUR = timedelta(hours=1)

needs_boot_clock = pytest.mark.skipif(
    sys.platform != "linux", reason="Only Linux counts a process's start from the boot."
)


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalLauncher]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    made = LocalLauncher(command=(sys.executable, FAKE, "wait"))
    yield made
    for handle in made._children:
        made.kill(handle)


def set_clock(db: Session, by: timedelta) -> None:
    """Let the clock have been set: whatever was written down before is that much older."""
    tables: tuple[type[SQLModel], ...] = (Run, Attempt, Worker)
    for table in tables:
        for row in db.exec(select(table)):
            for name in table.model_fields:
                if name.endswith(("_at", "_until")) and getattr(row, name):
                    setattr(row, name, getattr(row, name) - by)


@pytest.mark.parametrize("by", [HOUR, -HOUR], ids=["forwards", "back"])
@pytest.mark.parametrize("is_another", [False, True], ids=["same worker", "next worker"])
def test_run_completes_once_when_clock_is_changed(
    engine: Engine, settings: Settings, launcher: LocalLauncher, by: timedelta, *, is_another: bool
) -> None:
    loop = WorkerLoop(engine, settings, launcher)
    with unit_of_work(engine) as db:
        make_run(db)

    def seen(is_so: Callable[[Run], bool]) -> bool:
        loop.tick()
        with read_session(engine) as db:
            return is_so(runs.get(db, 1))

    wait_until(lambda: seen(lambda run: run.step == 1))
    with unit_of_work(engine) as db:
        set_clock(db, by)
    if is_another:
        loop = WorkerLoop(engine, settings, LocalLauncher(command=launcher.command))
        loop.adopt(alone=True)
    loop._heartbeat_at = float("-inf")
    for step in range(1, 6):
        (settings.runs / "1" / f"go-{step}").touch()
    wait_until(lambda: seen(lambda run: run.status.is_final and not loop.monitored))

    with read_session(engine) as db:
        run, made = runs.get(db, 1), attempts.list_attempts(db, 1)
        counted = prometheus_metrics.collect(db)
    assert (run.status, [one.outcome for one in made]) == (RunStatus.SUCCEEDED, ["succeeded"])
    told = run_progress.measure(run)
    took = (told.queued_seconds, told.launch_seconds, told.first_step_seconds, told.total_seconds)
    assert min(second for second in took if second is not None) >= 0
    assert counted.duration_seconds >= 0
    page = TestClient(create_app(engine, settings)).get("/runs/1/details")
    assert "-1 h" not in page.text


@needs_boot_clock
def test_process_start_time_uses_boot_clock() -> None:
    """Its start is counted from the boot, by a clock that nobody can set."""
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        after = time.clock_gettime(time.CLOCK_BOOTTIME)
        tick = 1 / os.sysconf("SC_CLK_TCK")
        assert before - tick <= process_start_time(child.pid) <= after
        child.kill()
