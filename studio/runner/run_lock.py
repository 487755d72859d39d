"""Lock a run's folder for one process, and record which process holds it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from studio.processes.start_time import process_start_time
from studio.protocols.run_dir import RunDir


@contextmanager
def lock_run(run: RunDir) -> Iterator[None]:
    """Lock the folder, waiting for a process that is just exiting. The system always unlocks it."""
    with run.lock.open("a+", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        pid = os.getpid()
        lock.truncate(0)
        lock.write(f"{pid} {process_start_time(pid)!r}")
        lock.flush()
        yield
