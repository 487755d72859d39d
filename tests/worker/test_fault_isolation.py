"""Each step of a worker is made to fail for one run, task or service: the others go on."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Engine

from studio.db.session import read_session, unit_of_work
from studio.db.states import RunStatus, TaskStatus
from studio.db.tables import Run, Worker
from studio.db.tasks import Export, Task
from studio.protocols.run_dir import RunDir, WorkDir
from studio.services.exports import exports
from studio.services.runs import run_commands, runs
from studio.services.tasks import tasks
from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.services.workers import workers
from studio.settings import Settings
from studio.worker.loop import WorkerLoop
from studio.worker.processes.launcher import LaunchSpec, LocalLauncher
from studio.worker.tasks import TaskCommands
from tests.support import waiting
from tests.support.factories import make_finished_run, make_run
from tests.support.worker_processes import stop_processes

HERE = Path(__file__).parents[1]

Break = Callable[[WorkDir], None]


@dataclass(slots=True)
class Faulty(LocalLauncher):
    """A launcher one of whose methods raises for one run."""

    fails_in: str = ""
    run_id: int = 1
    _victims: tuple[str, ...] = ()

    def submit(self, spec: LaunchSpec) -> str:
        if spec.run_id == self.run_id:
            self._fail("submit")
        handle = LocalLauncher.submit(self, spec)
        if spec.run_id == self.run_id:
            self._victims += (handle,)
        return handle

    def adopt(self, spec: LaunchSpec, handle: str) -> str:
        if spec.run_id == self.run_id:
            self._victims += (handle,)
            self._fail("adopt")
        return LocalLauncher.adopt(self, spec, handle)

    def poll(self, handle: str) -> ProcessExit | None:
        if handle in self._victims:
            self._fail("observe")
        return LocalLauncher.poll(self, handle)

    def stop(self, handle: str) -> None:
        if handle in self._victims:
            self._fail("stop")
        LocalLauncher.stop(self, handle)

    def tick(self) -> None:
        self._fail("tend")

    def _fail(self, method: str) -> None:
        if method == self.fails_in:
            raise RuntimeError(method)


Start = Callable[..., WorkerLoop]


@pytest.fixture
def start(engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Make workers with two slots whose runs and tasks wait; none is left running."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    loops: list[WorkerLoop] = []

    def begin(fails_in: str = "") -> WorkerLoop:
        command = (sys.executable, str(HERE / "fakes" / "runner.py"), "wait")
        commands = TaskCommands(
            export=(sys.executable, str(HERE / "fakes" / "exporter.py"), "wait"),
            task=(sys.executable, str(HERE / "fakes" / "task.py"), "wait"),
        )
        launcher = Faulty(command=command, wanted_slots=2, fails_in=fails_in)
        loops.append(WorkerLoop(engine, settings, launcher, commands=commands))
        loops[-1].adopt(alone=True)
        return loops[-1]

    yield begin
    for loop in loops:
        stop_processes(loop)
        for handle, child in launcher_of(loop)._children.items():
            LocalLauncher.kill(launcher_of(loop), handle)
            _ = child.child and child.child.wait()


def launcher_of(loop: WorkerLoop) -> LocalLauncher:
    assert isinstance(loop.launcher, LocalLauncher)
    return loop.launcher


def submit(engine: Engine, *names: str) -> None:
    with unit_of_work(engine) as db:
        for name in names:
            make_run(db, name)


def run_of(loop: WorkerLoop, run_id: int) -> Run:
    with read_session(loop.engine) as db:
        return runs.get(db, run_id)


def tick_until(loop: WorkerLoop, is_so: Callable[[], bool]) -> None:
    def is_so_now() -> bool:
        loop.tick()
        return is_so()

    waiting.wait_until(is_so_now)


def folder_of(loop: WorkerLoop, run_id: int) -> RunDir:
    return RunDir(loop.settings.runs / str(run_id))


def finish(loop: WorkerLoop, run_id: int) -> None:
    """Let a run that waits go on to its end."""
    for step in range(1, 6):
        (folder_of(loop, run_id).root / f"go-{step}").touch()
    tick_until(loop, lambda: run_of(loop, run_id).status is RunStatus.SUCCEEDED)


def both_train(loop: WorkerLoop) -> None:
    tick_until(loop, lambda: run_of(loop, 1).step == 1 and run_of(loop, 2).step == 1)


def deleted(folder: WorkDir) -> None:
    shutil.rmtree(folder.root)


def replaced_by_a_file(folder: WorkDir) -> None:
    shutil.rmtree(folder.root)
    folder.root.touch()


def without_events(folder: WorkDir) -> None:
    folder.events.path.unlink()


def with_cut_events(folder: WorkDir) -> None:
    folder.events.path.write_bytes(b"")


def with_a_folder_for_events(folder: WorkDir) -> None:
    folder.events.path.unlink()
    folder.events.path.mkdir()
    for number in range(1000):  # to be larger than what was read
        (folder.events.path / f"{number:0200}").touch()


def with_unreadable_events(folder: WorkDir) -> None:
    """Put a link to itself in their place: not even root, who may run tests, can read that."""
    folder.events.path.unlink()
    folder.events.path.symlink_to(folder.events.path.name)


BREAKS = [
    (deleted, "files_lost"),
    (replaced_by_a_file, "files_lost"),
    (without_events, "files_lost"),
    (with_cut_events, "files_lost"),
    (with_a_folder_for_events, "not_followed"),
    (with_unreadable_events, "files_lost"),
]


@pytest.mark.parametrize(
    ("broken", "code", "when"),
    [(*one, "running") for one in BREAKS]
    + [(*BREAKS[0], when) for when in ("stopping", "restarted", "stopping, restarted")],
)
def test_run_with_broken_files_fails_and_other_runs_continue(
    engine: Engine, start: Start, broken: Break, code: str, when: str
) -> None:
    submit(engine, "broken", "sound", "waits")
    loop = start()
    both_train(loop)
    handle = run_of(loop, 1).handle
    broken(folder_of(loop, 1))
    if "stopping" in when:
        with unit_of_work(engine) as db:
            run_commands.pause(db, 1)
    if "restarted" in when:
        children = launcher_of(loop)._children
        loop.monitored.clear()
        loop = start()
        launcher_of(loop)._children = children
    tick_until(loop, lambda: run_of(loop, 1).status.is_final)

    run = run_of(loop, 1)
    assert (run.status, run.error_code, run.worker, run.handle) == (RunStatus.FAILED, code, "", "")
    assert loop.launcher.poll(handle) is not None
    assert 1 not in loop.monitored
    tick_until(loop, lambda: run_of(loop, 3).step == 1)
    finish(loop, 2)
    assert loop.isolation.failing_steps() == []


def test_queue_continues_after_runs_folder_is_deleted(engine: Engine, start: Start) -> None:
    submit(engine, "first", "second", "third")
    loop = start()
    both_train(loop)
    shutil.rmtree(loop.settings.runs)
    tick_until(loop, lambda: run_of(loop, 3).step == 1)

    assert [run_of(loop, number).error_code for number in (1, 2)] == ["files_lost"] * 2
    assert run_of(loop, 1).error_message == (
        "Its folder was deleted or moved while it was running, so it was stopped."
    )
    finish(loop, 3)


def test_run_with_deleted_folder_can_be_restarted(engine: Engine, start: Start) -> None:
    submit(engine, "first")
    loop = start()
    tick_until(loop, lambda: run_of(loop, 1).step == 1)
    deleted(folder_of(loop, 1))
    tick_until(loop, lambda: run_of(loop, 1).status.is_final)
    with unit_of_work(engine) as db:
        run_commands.restart(db, 1)
    tick_until(loop, lambda: run_of(loop, 1).step == 1)

    finish(loop, 1)


@pytest.mark.parametrize("method", ["observe", "stop"])
def test_run_fails_when_launcher_cannot_monitor_it(
    engine: Engine, start: Start, method: str
) -> None:
    submit(engine, "broken", "sound", "waits")
    loop = start()
    both_train(loop)
    loop.launcher.fails_in = method  # type: ignore[attr-defined] # of `Faulty`
    with unit_of_work(engine) as db:
        run_commands.pause(db, 1)
    tick_until(loop, lambda: run_of(loop, 1).status.is_final)

    run = run_of(loop, 1)
    assert (run.error_code, run.error_message) == (
        "not_followed",
        "The worker could not monitor this run, so it was stopped: RuntimeError.",
    )
    tick_until(loop, lambda: run_of(loop, 3).step == 1)
    finish(loop, 2)


def test_unadoptable_run_fails_and_others_are_adopted(engine: Engine, start: Start) -> None:
    submit(engine, "broken", "sound")
    first = start()
    both_train(first)
    first.monitored.clear()
    loop = start("adopt")
    tick_until(loop, lambda: run_of(loop, 1).status.is_final)

    assert run_of(loop, 1).error_code == "not_followed"
    assert LocalLauncher.poll(launcher_of(first), run_of(loop, 2).handle) is None
    finish(loop, 2)


def test_unstartable_run_fails_and_next_run_starts(engine: Engine, start: Start) -> None:
    submit(engine, "broken", "sound")
    loop = start("submit")
    tick_until(loop, lambda: run_of(loop, 2).step == 1)

    run = run_of(loop, 1)
    assert (run.status, run.error_message) == (
        RunStatus.FAILED,
        "The training process could not be started: RuntimeError.",
    )


def test_worker_failure_is_reported_until_resolved(engine: Engine, start: Start) -> None:
    submit(engine, "sound")
    loop = start("tend")
    tick_until(loop, lambda: run_of(loop, 1).step == 1)

    def told() -> list[str]:
        with read_session(engine) as db:
            return workers.list_failures(db)

    tick_until(
        loop, lambda: told() == ["The worker cannot reach what starts its runs (RuntimeError)"]
    )
    loop.launcher.fails_in = ""  # type: ignore[attr-defined] # of `Faulty`
    tick_until(loop, lambda: told() == [])
    with read_session(engine) as db:
        (worker,) = workers.list_alive(db)
    assert worker.failures >= 1


@pytest.mark.parametrize(("broken", "code"), BREAKS)
def test_task_with_broken_files_fails_and_other_tasks_continue(
    engine: Engine, start: Start, broken: Break, code: str
) -> None:
    with unit_of_work(engine) as db:
        db.add_all([Task(kind="stats", subject=f"dataset:{number}") for number in (1, 2, 3)])
    loop = start()
    tick_until(loop, lambda: all(task(loop, number).share for number in (1, 2)))
    watched = loop.scheduler.tasks.monitored[1].process
    broken(tasks.task_dir(loop.settings.tasks, task(loop, 1)))
    tick_until(loop, lambda: task(loop, 1).status.is_final)

    assert (task(loop, 1).status, task(loop, 1).error_code) == (TaskStatus.FAILED, code)
    assert not watched.is_alive
    tick_until(loop, lambda: task(loop, 3).share > 0)
    (tasks.task_dir(loop.settings.tasks, task(loop, 2)).root / "go").touch()
    tick_until(loop, lambda: task(loop, 2).status is TaskStatus.SUCCEEDED)


def task(loop: WorkerLoop, number: int) -> Task:
    with read_session(loop.engine) as db:
        return tasks.get(db, number)


def test_export_with_deleted_folder_fails(engine: Engine, start: Start) -> None:
    loop = start()
    folder = folder_of(loop, 1)
    folder.artifacts.mkdir(parents=True)
    with unit_of_work(engine) as db:
        exports.create(db, make_finished_run(db).id or 0, "bfloat16", None, loop.settings.runs)

    def export() -> Export:
        with read_session(engine) as db:
            return exports.get(db, 1, 1)

    tick_until(loop, lambda: export().share > 0)
    deleted(folder.export(1))
    tick_until(loop, lambda: export().status.is_final)

    assert (export().error_code, loop.scheduler.slots) == ("files_lost", 0)


def test_task_of_unknown_kind_fails_and_next_task_starts(engine: Engine, start: Start) -> None:
    with unit_of_work(engine) as db:
        db.add_all([Task(kind=kind, subject="dataset:1") for kind in ("unheard of", "stats")])
    loop = start()
    tick_until(loop, lambda: task(loop, 2).share > 0)

    assert task(loop, 1).status is TaskStatus.FAILED


def test_worker_without_failures_reports_none(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        db.add(Worker(name="w", pid=1, slots=1))
        db.flush()
        assert workers.list_failures(db) == []
