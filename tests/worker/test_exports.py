"""Exports, made by real processes that play a part."""

import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Engine

from studio.db.session import read_session, unit_of_work
from studio.db.states import RunStatus, TaskStatus
from studio.db.tasks import Export
from studio.protocols.run_dir import ExportDir, RunDir
from studio.services.exports import exports
from studio.services.queue import concurrent_exports
from studio.services.runs import runs
from studio.services.tasks import tasks
from studio.settings import Settings
from studio.worker.loop import WorkerLoop
from studio.worker.processes.launcher import LocalLauncher
from studio.worker.tasks import ExportKind, TaskCommands
from tests.support.factories import MACHINES, make_finished_run, make_run
from tests.support.waiting import wait_until
from tests.support.worker_processes import stop_processes

HERE = Path(__file__).parents[1]
PATIENCE_SECONDS = 30

Start = Callable[..., WorkerLoop]


def has_ended(loop: WorkerLoop, handle: str) -> bool:
    return loop.launcher.poll(handle) is not None


SPARE = MACHINES["plain"]


@pytest.fixture
def start(engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Make worker loops whose exports play a part; whatever they left running is killed."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    loops: list[WorkerLoop] = []

    def begin(part: str, runner: str = "succeed") -> WorkerLoop:
        trainer = (sys.executable, str(HERE / "fakes" / "runner.py"), runner)
        exporter = (sys.executable, str(HERE / "fakes" / "exporter.py"), part)
        loop = WorkerLoop(
            engine, settings, LocalLauncher(command=trainer), commands=TaskCommands(export=exporter)
        )
        loops.append(loop)
        loop.adopt(alone=True)
        return loop

    yield begin
    for loop in loops:
        stop_processes(loop)
        for followed in loop.monitored.values():
            loop.launcher.kill(followed.handle)
            wait_until(partial(has_ended, loop, followed.handle))


@pytest.fixture
def export(engine: Engine, settings: Settings) -> int:
    """Ask for an export of a run that has succeeded."""
    RunDir(settings.runs / "1").artifacts.mkdir(parents=True)
    with unit_of_work(engine) as db:
        run = make_finished_run(db)
        return exports.create(db, run.id or 0, "bfloat16", None, settings.runs).id or 0


def folder(settings: Settings, export_id: int) -> ExportDir:
    return RunDir(settings.runs / "1").export(export_id)


def until(loop: WorkerLoop, is_so: Callable[[Export | None], bool]) -> Export | None:
    """Let the worker tick until something is so of the export."""
    pause = threading.Event()
    for _ in range(PATIENCE_SECONDS * 100):
        loop.tick()
        with read_session(loop.engine) as db:
            export = db.get(Export, 1)
        if is_so(export):
            return export
        pause.wait(0.01)
    raise AssertionError(f"Still {export}.")


def settled(loop: WorkerLoop) -> Export:
    found = until(loop, lambda one: one is not None and one.status.is_final)
    assert found is not None
    return found


def begun(export: Export | None) -> bool:
    return export is not None and export.share > 0


def test_export_runs_from_queue_to_measurements(
    settings: Settings, start: Start, export: int
) -> None:
    made = settled(start("succeed"))

    assert (made.status, made.measured["mean_relative_change"]) == (TaskStatus.SUCCEEDED, 0.0014)
    assert math.isnan(made.measured["perplexity_after"])
    assert sorted(path.name for path in folder(settings, export).root.iterdir()) == [
        "events.jsonl",
        "files",
        "job.json",
        "log.txt",
    ]


@pytest.mark.usefixtures("export")
def test_exporter_failure_message_is_kept(start: Start) -> None:
    made = settled(start("fail"))

    assert (made.status, made.error_code, made.error_message) == (
        TaskStatus.FAILED,
        "disk_full",
        "The disk is full.",
    )


@pytest.mark.usefixtures("export")
def test_killed_export_process_fails_export(start: Start) -> None:
    made = settled(start("die"))

    assert (made.status, made.error_message) == (
        TaskStatus.FAILED,
        "The export process was killed from outside the studio (SIGKILL).",
    )


@pytest.mark.usefixtures("export")
def test_queued_run_starts_before_queued_export(engine: Engine, start: Start) -> None:
    with unit_of_work(engine) as db:
        second = make_run(db).id or 0
    loop = start("succeed")
    loop.tick()
    with read_session(engine) as db:
        assert tasks.list_waiting(db, Export)[0].status is TaskStatus.QUEUED
        assert [run.id for run in runs.list_live(db)] == [second]
    settled(loop)

    with read_session(engine) as db:
        assert runs.get(db, second).status is RunStatus.SUCCEEDED


@pytest.mark.usefixtures("export")
def test_run_waits_while_export_holds_slot(engine: Engine, start: Start) -> None:
    loop = start("wait")
    until(loop, begun)
    with unit_of_work(engine) as db:
        second = make_run(db).id or 0
    loop.tick()

    with read_session(engine) as db:
        assert runs.get(db, second).status is RunStatus.QUEUED


def begin_training(engine: Engine, **estimate: int) -> int:
    """Queue a run that was estimated to hold so many bytes."""
    with unit_of_work(engine) as db:
        run = make_run(db)
        run.estimate = {"memory": {"total": estimate.get("total", 10**8), "parts": {}}}
        return run.id or 0


@pytest.fixture
def small(engine: Engine, export: int) -> int:
    """Ask for an export of a model with few parameters."""
    with unit_of_work(engine) as db:
        runs.get(db, 1).resolved = {"parameters": 1000, "trainable_parameters": 10}
    return export


def test_small_export_completes_while_run_trains(engine: Engine, start: Start, small: int) -> None:
    second = begin_training(engine)
    loop = start("succeed", runner="wait")
    made = settled(loop)
    with read_session(engine) as db:
        is_live = runs.get(db, second).status.is_live

    assert (made.id, made.status, is_live) == (small, TaskStatus.SUCCEEDED, True)


def test_export_waits_when_memory_beside_training_is_short(
    engine: Engine, start: Start, small: int
) -> None:
    begin_training(engine)
    loop = start("succeed", runner="wait")
    trade = loop.scheduler.exports.kind
    assert isinstance(trade, ExportKind)
    loop.scheduler.exports.kind = replace(trade, free_memory=lambda: 10**6)
    for _ in range(3):
        loop.tick()
    with read_session(engine) as db:
        made, fits = (
            exports.get(db, 1, small),
            concurrent_exports.fits_in_memory(db, exports.get(db, 1, small), SPARE, 0),
        )

    assert (made.status, fits) == (TaskStatus.QUEUED, False)


def test_run_waits_for_export_when_memory_is_short(
    engine: Engine, start: Start, small: int
) -> None:
    loop = start("wait")
    until(loop, begun)
    second = begin_training(engine, total=10**15)
    for _ in range(3):
        loop.tick()
    with read_session(engine) as db:
        status = runs.get(db, second).status
        blocking = concurrent_exports.blocking_export(db, loop.hardware)
    (folder(loop.settings, small).root / "go").touch()
    settled(loop)
    loop.tick()

    assert (status, blocking and blocking.id) == (RunStatus.QUEUED, small)
    with read_session(engine) as db:
        assert runs.get(db, second).status.is_live


def test_small_export_does_not_occupy_run_slot(engine: Engine, start: Start, small: int) -> None:
    loop = start("wait")
    until(loop, begun)
    second = begin_training(engine)
    loop.tick()
    with read_session(engine) as db:
        assert runs.get(db, second).status.is_live
        assert exports.get(db, 1, small).status is TaskStatus.RUNNING


def test_small_export_takes_slot_only_when_it_uses_gpu(
    engine: Engine, settings: Settings, small: int
) -> None:
    begin_training(engine)
    trade = ExportKind(settings, MACHINES["t4"], lambda: 2**33)
    with read_session(engine) as db:
        made = exports.get(db, 1, small)
        starts = [trade.may_start(db, made, on_device=on_device) for on_device in (True, False)]
        beside = trade.takes_slot(db, made)
        made.gpu = 0
        on_gpu = trade.takes_slot(db, made)

    assert (starts, beside, on_gpu) == ([True, True], False, True)


def test_second_worker_adopts_running_export(settings: Settings, start: Start, export: int) -> None:
    first = start("wait")
    until(first, begun)
    left = first.scheduler.exports.monitored.pop(export).process
    second = start("wait")
    (folder(settings, export).root / "go").touch()
    (left.child or pytest.fail("It was our child.")).wait()

    made = settled(second)
    assert (made.status, made.attempt) == (TaskStatus.SUCCEEDED, 1)


def test_export_is_restarted_after_worker_and_process_die(
    settings: Settings, start: Start, export: int
) -> None:
    first = start("wait")
    until(first, begun)
    left = first.scheduler.exports.monitored.pop(export).process
    left.kill()
    (left.child or pytest.fail("It was our child.")).wait()
    (folder(settings, export).root / "files.partial").mkdir()

    made = settled(start("succeed"))
    assert (made.status, made.attempt) == (TaskStatus.SUCCEEDED, 2)
    assert not (folder(settings, export).root / "files.partial").exists()


def test_export_fails_after_repeated_process_deaths(
    engine: Engine, start: Start, export: int
) -> None:
    for _ in range(tasks.MAX_ATTEMPTS):
        loop = start("wait")
        until(loop, begun)
        left = loop.scheduler.exports.monitored.pop(export).process
        left.kill()
        (left.child or pytest.fail("It was our child.")).wait()
    start("succeed")

    with read_session(engine) as db:
        made = exports.get(db, 1, export)
    assert (made.status, made.error_code) == (TaskStatus.FAILED, "lost_worker")


def test_deleted_export_leaves_no_process_or_files(
    engine: Engine, settings: Settings, start: Start, export: int
) -> None:
    loop = start("wait")
    until(loop, begun)
    process = loop.scheduler.exports.monitored[export].process
    with unit_of_work(engine) as db:
        exports.delete(db, 1, export, settings.runs)
    until(loop, lambda one: one is None and not loop.scheduler.exports.monitored)

    assert not process.is_alive
    assert list(RunDir(settings.runs / "1").exports.iterdir()) == []


def test_deleting_run_deletes_its_exports(
    engine: Engine, settings: Settings, start: Start, export: int
) -> None:
    settled(start("succeed"))
    with unit_of_work(engine) as db:
        runs.delete(db, 1, settings.runs)

    with read_session(engine) as db:
        assert db.get(Export, export) is None
    assert not (settings.runs / "1").exists()
