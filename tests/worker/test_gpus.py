"""The worker on machines with GPUs: which process sees which."""

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Engine

from studio.db.session import read_session, unit_of_work
from studio.db.tables import Run
from studio.gpu_detection import VISIBLE
from studio.hardware import detect
from studio.hardware_usage.usage import GpuUsage, HardwareUsage
from studio.services.hardware.usage_history import Point
from studio.services.queue import overview, queue
from studio.services.runs import runs
from studio.services.tasks import tasks
from studio.services.workers import workers
from studio.settings import Settings
from studio.worker import loop as worker_loop
from studio.worker.loop import WorkerLoop
from studio.worker.processes.launcher import LocalLauncher
from studio.worker.tasks import TaskCommands
from tests.support import nvidia_smi, waiting
from tests.support.factories import make_run
from tests.support.nvidia_smi import A100, SECOND_T4, T4
from tests.support.worker_processes import stop_processes

FAKES = Path(__file__).parents[1] / "fakes"
GB = 2**30
Start = Callable[..., WorkerLoop]


@pytest.fixture
def start(
    engine: Engine, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Start]:
    """Make workers of machines with other GPUs; their runs wait until they are killed."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setattr(worker_loop, "START_SECONDS", float("inf"))  # all that can in one tick
    path = os.environ["PATH"]
    tasks_wait = TaskCommands(task=(sys.executable, str(FAKES / "task.py"), "wait"))
    launchers: list[LocalLauncher] = []
    loops: list[WorkerLoop] = []

    def begin(*gpus: str, slots: int | None = None) -> WorkerLoop:
        monkeypatch.setenv("PATH", f"{nvidia_smi.install(tmp_path / 'bin', *gpus)}:{path}")
        detect.cache_clear()
        machine = replace(detect(), torch="2.13.0+cu130")
        command = (sys.executable, str(FAKES / "runner.py"), "wait")
        launchers.append(LocalLauncher(command=command, wanted_slots=slots, hardware=machine))
        loop = WorkerLoop(engine, settings, launchers[-1], hardware=machine, commands=tasks_wait)
        loops.append(loop)
        loop.adopt(alone=True)
        return loop

    yield begin
    for loop in loops:
        stop_processes(loop)
    for launcher in launchers:
        for handle in list(launcher._children):
            launcher.kill(handle)
            waiting.wait_until(lambda: launcher.poll(handle) is not None)  # noqa: B023 -- called at once
    detect.cache_clear()


def submit(engine: Engine, gibibytes: int) -> int:
    with unit_of_work(engine) as db:
        run = make_run(db, precision="fp32")
        run.estimate = {"memory": {"total": gibibytes * GB, "parts": {}}}
        return run.id or 0


def environment_of(loop: WorkerLoop, run_id: int) -> dict[str, str]:
    """Return the environment of a run's process."""
    with read_session(loop.engine) as db:
        pid = loop.launcher.pid(runs.get(db, run_id).handle)
    lines = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(line.split("=", 1) for line in lines if line)


def started(engine: Engine) -> list[Run]:
    with read_session(engine) as db:
        return [run for run in runs.list_live(db) if run.handle]


def test_each_run_sees_its_own_gpu_by_uuid(engine: Engine, start: Start) -> None:
    loop = start(A100, T4, SECOND_T4)
    ids = [submit(engine, size) for size in (1, 30, 1, 1)]
    loop.tick()

    seen = {run.id: environment_of(loop, run.id or 0)[VISIBLE] for run in started(engine)}
    assert seen == {
        ids[0]: "GPU-bbbb2222-0000",
        ids[1]: "GPU-aaaa1111-0000",
        ids[2]: "GPU-cccc3333-0000",
    }
    assert environment_of(loop, ids[0])["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_more_slots_than_gpus_share_them_evenly(engine: Engine, start: Start) -> None:
    loop = start(T4, SECOND_T4, slots=4)
    for _ in range(5):
        submit(engine, 1)
    loop.tick()

    assert sorted(run.gpu or 0 for run in started(engine)) == [1, 1, 2, 2]


@pytest.mark.usefixtures("engine")
def test_gpu_that_fails_gets_no_runs_until_it_is_repaired(engine: Engine, start: Start) -> None:
    loop = start(T4, SECOND_T4)
    report(loop, {1: "it no longer answers", 2: ""})
    first, second = submit(engine, 1), submit(engine, 1)
    loop.tick()

    assert [(run.id, run.gpu) for run in started(engine)] == [(first, 2)]
    with read_session(engine) as db:
        faults = workers.whole_hardware(db).gpu_faults
        assert queue.position(db, runs.get(db, second)) == 1
    assert dict(faults) == {1: "it no longer answers"}

    report(loop, {1: "", 2: ""})
    loop.tick()
    assert [(run.id, run.gpu) for run in started(engine)] == [(first, 2), (second, 1)]


def test_task_waits_until_a_gpu_works(engine: Engine, start: Start) -> None:
    loop = start(T4)
    report(loop, {1: "it no longer answers"})
    with unit_of_work(engine) as db:
        task = tasks.enqueue(db, workers.SPEED_TASK_KIND, "this machine", {})
    loop.tick()

    assert loop.scheduler.slots == 0
    with read_session(engine) as db:
        wait = overview.explain_work_wait(db, tasks.get(db, task.id or 0))
    assert wait is not None
    assert wait.reason == "waiting for a GPU that works"
    report(loop, {1: ""})
    loop.tick()
    assert loop.scheduler.gpus == {1}


def test_task_waits_for_the_only_gpu_that_works(engine: Engine, start: Start) -> None:
    loop = start(T4, SECOND_T4)
    report(loop, {1: "it no longer answers", 2: ""})
    submit(engine, 1)
    with unit_of_work(engine) as db:
        tasks.enqueue(db, workers.SPEED_TASK_KIND, "this machine", {})
    loop.tick()

    assert [run.gpu for run in started(engine)] == [2]
    assert loop.scheduler.slots == 0


def report(loop: WorkerLoop, faults: dict[int, str]) -> None:
    """Have the driver report faults."""
    gpus = tuple(GpuUsage(index=index, name="T4", fault=why) for index, why in faults.items())
    usage = HardwareUsage(
        host="here",
        cores=2,
        cpu=0,
        memory_used_bytes=1,
        memory_total_bytes=2,
        disk_free_bytes=1,
        disk_total_bytes=2,
        gpus=gpus,
    )
    loop.sampler._newest = Point(at=datetime.now(UTC), usage=usage)
    loop._heartbeat_at -= worker_loop.HEARTBEAT_SECONDS
