"""Runs that are sent to trackers by a real worker and a real process, beside their training."""

import csv
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from studio.db.session import read_session, unit_of_work
from studio.db.states import RunStatus
from studio.protocols.run_dir import RunDir
from studio.services.runs import runs
from studio.services.trackers import tracker_status, trackers
from studio.services.trackers.tracker_status import TrackerStatus
from studio.settings import Settings
from studio.worker.loop import WorkerLoop
from studio.worker.processes.launcher import LocalLauncher
from tests.support.factories import make_run
from tests.support.waiting import wait_until
from tests.support.worker_processes import stop_processes

FAKE = str(Path(__file__).parents[1] / "fakes" / "runner.py")

Start = Callable[[str], WorkerLoop]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"trackers": ("csv",)})


@pytest.fixture
def start(engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    loops: list[WorkerLoop] = []

    def begin(part: str) -> WorkerLoop:
        loops.append(
            WorkerLoop(engine, settings, LocalLauncher(command=(sys.executable, FAKE, part)))
        )
        loops[-1].adopt(alone=True)
        return loops[-1]

    yield begin
    for loop in loops:
        stop_processes(loop)
        assert isinstance(loop.launcher, LocalLauncher)
        end_runs(loop.launcher)


def end_runs(launcher: LocalLauncher) -> None:
    """End the processes of runs: one that has told its end may not be gone yet."""
    for handle in launcher._children:
        launcher.kill(handle)
    wait_until(lambda: all(launcher.poll(handle) for handle in launcher._children))


def status(loop: WorkerLoop, run_id: int = 1) -> TrackerStatus | None:
    with read_session(loop.engine) as db:
        found = tracker_status.list_for_run(db, loop.settings, runs.get(db, run_id))
    return found[0] if found else None


def tick_until(loop: WorkerLoop, is_so: Callable[[], bool]) -> None:
    def is_reached() -> bool:
        loop.tick()
        return is_so()

    wait_until(is_reached)


def wait_for(loop: WorkerLoop, is_so: Callable[[TrackerStatus], bool]) -> TrackerStatus:
    """Let the worker tick until something is so of the run's tracker."""
    tick_until(loop, lambda: (found := status(loop)) is not None and is_so(found))
    found = status(loop)
    assert found is not None
    return found


def steps(one: TrackerStatus) -> set[int]:
    with (Path(one.place) / "metrics.csv").open(newline="", encoding="utf-8") as file:
        return {int(row["step"]) for row in csv.DictReader(file)}


def test_run_is_sent_while_it_trains_and_when_it_has_ended(
    engine: Engine, settings: Settings, start: Start
) -> None:
    with unit_of_work(engine) as db:
        make_run(db)
    loop, folder = start("wait"), RunDir(settings.runs / "1").root
    tick_until(loop, folder.is_dir)
    for step in (1, 2):
        (folder / f"go-{step}").touch()
    sent = wait_for(loop, lambda one: one.step == 2)
    assert (sent.progress, steps(sent)) == ("sending", {1, 2})

    for step in (3, 4, 5):
        (folder / f"go-{step}").touch()
    sent = wait_for(loop, lambda one: one.progress == "sent" and one.row.is_closed)
    assert (sent.step, steps(sent)) == (5, {1, 2, 3, 4, 5})


def test_run_does_not_wait_for_tracker_that_cannot_write(
    engine: Engine, settings: Settings, start: Start
) -> None:
    settings.trackers_folder.mkdir()
    (settings.trackers_folder / "csv").touch()
    with unit_of_work(engine) as db:
        make_run(db)
    loop = start("succeed")
    failed = wait_for(loop, lambda one: one.row.failures > 0)

    with read_session(engine) as db:
        assert runs.get(db, 1).status is RunStatus.SUCCEEDED
    assert (failed.progress, failed.error) == (
        "failing",
        "CSV files: csv cannot be written: file exists.",
    )
    (settings.trackers_folder / "csv").unlink()
    with unit_of_work(engine) as db:
        trackers.retry(db, settings, 1, "csv")
    assert wait_for(loop, lambda one: one.progress == "sent").error == ""
