"""Workers that a test makes: let tick until something is so, and their processes sent home."""

import threading
from collections.abc import Callable

from studio.db.session import read_session
from studio.db.tasks import Task
from studio.services.tasks import tasks
from studio.worker.loop import WorkerLoop

PATIENCE_SECONDS = 60


def wait_for_task(loop: WorkerLoop, is_so: Callable[[Task], bool], chore_id: int = 1) -> Task:
    """Let the worker tick until something is so of a chore."""
    pause = threading.Event()
    for _ in range(PATIENCE_SECONDS * 100):
        loop.tick()
        with read_session(loop.engine) as db:
            chore = tasks.get(db, chore_id)
        if is_so(chore):
            return chore
        pause.wait(0.01)
    raise AssertionError(f"Still {chore}.")


def wait_until_final(loop: WorkerLoop, chore_id: int = 1) -> Task:
    """Let the worker tick until a chore has ended, and its process with it."""
    return wait_for_task(loop, lambda one: one.status.is_final and one.pid is None, chore_id)


def stop_processes(loop: WorkerLoop) -> None:
    """Leave none of a worker's exports and chores running."""
    for shop in (loop.scheduler.exports, loop.scheduler.tasks):
        for followed in shop.monitored.values():
            followed.process.kill()
            _ = followed.process.child and followed.process.child.wait()
