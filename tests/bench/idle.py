"""An idle studio: the processor and memory of each process, and how soon a sleeping worker claims.

Processor shares are of one core, by the processes' own clocks. The studio without a launcher is
also what is left once the launcher has gone for want of use.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from sqlalchemy import Engine

from studio.db.session import open_database, read_session, unit_of_work
from studio.services.runs import runs
from studio.services.workers import workers
from studio.settings import Settings
from tests.bench.measurement import Measurement
from tests.support.factories import make_run
from tests.support.live_studio import ROOT, Studio, free_port, launcher_process, prepare
from tests.support.waiting import wait_until

IDLE_SECONDS = 60.0
SETTLE_SECONDS = 20.0
"""What a start leaves to do is done by then."""

CLAIMS = 40
BETWEEN_SECONDS = 3.0
"""By then the run before has ended, and the worker sleeps."""

FAKE = str(ROOT / "tests" / "fakes" / "runner.py")
WORKER = """
import sys, threading
from studio.services.operations import home
from studio.settings import Settings
from studio.worker.loop import WorkerLoop
from studio.worker.processes.launcher import LocalLauncher
settings = Settings()
command = (sys.executable, sys.argv[1], "succeed")
launcher = LocalLauncher(command=command, wanted_slots=4)
WorkerLoop(home.open_home(settings), settings, launcher).run(threading.Event())
"""
"""A worker whose runs take no time."""


def measure() -> Iterator[Measurement]:
    for is_warm in (True, False):
        with _prepared_home() as settings:
            studio = Studio(settings.home, free_port(), warm=is_warm)
            studio.start()
            try:
                if is_warm:
                    launcher_process(studio)
                yield from _idle(studio, "warm" if is_warm else "launcher gone")
            finally:
                studio.interrupt()
                studio.wait()
    with _prepared_home() as settings:
        took = sorted(_claims(settings))
        yield Measurement("commit until a sleeping worker claims, p50", took[CLAIMS // 2], "ms")
        yield Measurement("commit until a sleeping worker claims, p99", took[-1], "ms")


@contextmanager
def _prepared_home() -> Iterator[Settings]:
    with TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder) / "home")
        settings.home.mkdir()
        prepare(settings)
        yield settings


def _idle(studio: Studio, state: str) -> Iterator[Measurement]:
    assert studio.process is not None
    time.sleep(SETTLE_SECONDS)
    web = psutil.Process(studio.process.pid)
    processes = [web, *web.children(recursive=True)]
    before = [sum(one.cpu_times()[:2]) for one in processes]
    time.sleep(IDLE_SECONDS)
    assert all(one.is_running() for one in processes), "Installed packages changed meanwhile."
    used = [sum(one.cpu_times()[:2]) - old for one, old in zip(processes, before, strict=True)]
    shares = [100 * seconds / IDLE_SECONDS for seconds in used]
    memory = [one.memory_full_info().pss / 1e6 for one in processes]
    for name, share, size in zip(map(_name, processes), shares, memory, strict=True):
        yield Measurement(f"idle, {state}: {name}, processor", share, "% of a core")
        yield Measurement(f"idle, {state}: {name}, memory (PSS)", size, "MB")
    yield Measurement(f"idle, {state}: all, processor", sum(shares), "% of a core")
    yield Measurement(f"idle, {state}: all, memory (PSS)", sum(memory), "MB")


def _name(process: psutil.Process) -> str:
    words = process.cmdline()
    return next(
        (name for name in ("serve", "worker") if name in words),
        words[words.index("-m") + 1].rpartition(".")[2] if "-m" in words else process.name(),
    )


def _claims(settings: Settings) -> Iterator[float]:
    engine = open_database(settings)
    environment = os.environ | {"STUDIO_HOME": str(settings.home), "STUDIO_EVALUATE_RUNS": "false"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    with subprocess.Popen([sys.executable, "-c", WORKER, FAKE], env=environment) as worker:
        try:
            wait_until(lambda: _has_worker(engine))
            for number in range(CLAIMS):
                time.sleep(BETWEEN_SECONDS)
                yield _claim(engine, f"run {number}")
        finally:
            worker.kill()
    engine.dispose()


def _has_worker(engine: Engine) -> bool:
    with read_session(engine) as db:
        return bool(workers.list_alive(db))


def _claim(engine: Engine, name: str) -> float:
    """Return the milliseconds from the commit of a run to its claim."""
    with unit_of_work(engine) as db:
        run_id = make_run(db, name).id or 0
    committed = time.time()

    def claimed_at() -> float:
        with read_session(engine) as db:
            claimed = runs.get(db, run_id).claimed_at
        return claimed.timestamp() if claimed else 0.0

    wait_until(lambda: claimed_at() > 0)
    return (claimed_at() - committed) * 1000


if __name__ == "__main__":
    for figure in measure():
        sys.stdout.write(f"{figure}\n")
        sys.stdout.flush()
