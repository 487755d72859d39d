"""A training process: made, found again, told to stop, and known to be gone.

It lives in a session of its own, so it outlives the worker that made it; its pid together with
the moment it began names it, because a pid alone is given out again.
"""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType

import psutil

from studio.hardware import OPENMP_ENVIRONMENT
from studio.processes import allocator
from studio.processes.start_time import process_start_time
from studio.protocols.run_dir import RunDir, WorkDir
from studio.settings import Settings, without_secrets

RUNNER = (sys.executable, "-m", "studio.runner")
EXPORTER = (sys.executable, "-m", "studio.runner.export_main")
TASK_RUNNER = (sys.executable, "-m", "studio.runner.task_main")
PREFORK_SERVER = "studio.runner.prefork_server"
"""The module that keeps what a run loads, and forks runs."""

LEAKING_VARIABLES = (
    "ACCELERATE_MIXED_PRECISION",
    "ACCELERATE_USE_CPU",
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
)
"""Variables that would change what a run does without its recipe saying so."""


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    started: float
    """When it began, as `studio.processes.start_time` tells it."""
    child: subprocess.Popen[bytes] | None = None
    """None for a process that another worker made, or the launcher."""
    folder: RunDir | None = None
    """Where the launcher leaves the exit code of what it made."""

    @property
    def is_alive(self) -> bool:
        if self.child is not None:
            return self.child.poll() is None
        return _is_same_process(self.pid, self.started)

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None where nobody waited for it."""
        if self.child is not None:
            return self.child.returncode
        return self.folder.read_exit_code(self.pid) if self.folder else None

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def set_niceness(self, niceness: int) -> None:
        """Have it compute only when others do not, the more so the nicer it is."""
        with suppress(psutil.Error):
            psutil.Process(self.pid).nice(niceness)

    def dump_stacks(self) -> None:
        """Have it write into its log where each of its threads stands."""
        if self.is_alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGUSR1)

    def _signal(self, number: signal.Signals) -> None:
        if self.is_alive:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)


def start(
    folder: WorkDir,
    *,
    gpu: int | None = None,
    command: Sequence[str] = RUNNER,
    besides: Mapping[str, str] = MappingProxyType({}),
) -> Process:
    """Start the process that does the work in the folder; `besides` is for its environment."""
    with folder.log.open("ab") as log:
        child = subprocess.Popen(  # noqa: S603 -- our own interpreter, our own path
            [*command, str(folder.root)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment(gpu) | dict(besides),
            start_new_session=True,
        )
    return Process(child.pid, process_start_time(child.pid), child)


def environment(gpu: int | None) -> dict[str, str]:
    """Return what a training process finds in its environment: none of the studio's secrets."""
    kept = without_secrets(os.environ)
    clean = {name: value for name, value in kept.items() if name not in LEAKING_VARIABLES}
    if gpu is not None:
        clean["CUDA_VISIBLE_DEVICES"] = str(gpu)
    ours = OPENMP_ENVIRONMENT | allocator.ENVIRONMENT
    return ours | clean | {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "true"}


def hub_environment(settings: Settings) -> dict[str, str]:
    """Return what has the libraries of a training process ask the studio's own hub."""
    return {"HF_ENDPOINT": settings.hub_endpoint.rstrip("/")}


def find_process(
    pid: int | None, started: float | None, folder: RunDir | None = None
) -> Process | None:
    """Return the process of that name if it is still there."""
    if pid is None or started is None or not _is_same_process(pid, started):
        return None
    return Process(pid, started, folder=folder)


def find_training_process(folder: RunDir) -> Process | None:
    """Return the process that holds a run's folder, as that process itself has written down."""
    holder = _holder(folder)
    return find_process(*holder, folder) if holder else None


def kill_leftovers(folder: RunDir) -> None:
    """End whatever still holds a run's folder: its process, or what that has left behind.

    The helpers of a process that was killed alone hold its folder on, in its group; a number that
    still names a group is given to no new process.
    """
    holder = _holder(folder)
    if holder is None:
        return
    pid, _started = holder
    if left := find_process(*holder, folder):
        left.kill()
    elif not psutil.pid_exists(pid):
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _holder(folder: RunDir) -> tuple[int, float] | None:
    """Return who took hold of a folder that somebody holds: a pid, and when that began.

    In a folder that was copied the words of another stand, but nobody holds it.
    """
    try:
        with folder.lock.open("r+", encoding="ascii") as lock:
            words = lock.read().split()
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # Whoever has just taken hold may not have written who it is.
        return (int(words[0]), float(words[1])) if len(words) == _HOLDER_FIELDS else None
    except (OSError, ValueError):
        return None
    return None


_HOLDER_FIELDS = 2
"""A process is named by its number and when it began."""


def _is_same_process(pid: int, started: float) -> bool:
    try:
        process = psutil.Process(pid)
        return process_start_time(pid) == started and (
            process.status() != psutil.STATUS_ZOMBIE or _is_awaited(process)
        )
    except psutil.NoSuchProcess:
        return False


def _is_awaited(dead: psutil.Process) -> bool:
    """Whether a launcher is about to write down how a process ended; then it is not gone yet."""
    parent = dead.parent()
    return parent is not None and PREFORK_SERVER in parent.cmdline()
