"""A worker that serves endpoints in a thread, as beside a test's web process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine

from studio.settings import Settings
from studio.worker.loop import WorkerLoop
from studio.worker.processes.launcher import LocalLauncher
from studio.worker.serving import engine_process

TICK_SECONDS = 0.05


@contextmanager
def run_worker(engine: Engine, settings: Settings, slots: int = 1) -> Iterator[WorkerLoop]:
    """Let a worker tick until the block ends; then nothing that it started is left."""
    loop, stop = WorkerLoop(engine, settings, LocalLauncher(wanted_slots=slots)), threading.Event()
    loop.adopt(alone=True)

    def work() -> None:
        while not stop.wait(TICK_SECONDS):
            loop.tick()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield loop
    finally:
        stop.set()
        thread.join()
        loop.endpoints.close()
        for served in loop.endpoints.monitored.values():
            served.process.kill()
            _ = served.process.child and served.process.child.wait()
        for endpoint_id in engine_process.list_marked(settings.home):
            engine_process.kill_marked(settings.home, endpoint_id)
