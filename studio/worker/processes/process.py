"""A training process: start it, find it again, signal it, and detect its end.

It has its own session, so it outlives the worker that started it. It is identified by its pid and
its start time, because pids are reused.
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

from studio.gpu_detection import VISIBLE, cuda_name
from studio.hardware import OPENMP_ENVIRONMENT, detect
from studio.processes import allocator
from studio.processes.start_time import process_start_time
from studio.protocols.run_dir import RunDir, WorkDir
from studio.settings import Settings, without_secrets

RUNNER = (sys.executable, "-m", "studio.runner")
EXPORTER = (sys.executable, "-m", "studio.runner.work_main", "export")
TASK_RUNNER = (sys.executable, "-m", "studio.runner.work_main", "task")
PREFORK_SERVER = "studio.runner.prefork_server"
"""The module of the prefork server."""

LEAKING_VARIABLES = (
    "ACCELERATE_MIXED_PRECISION",
    "ACCELERATE_USE_CPU",
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
)
"""Variables that would override the recipe."""


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    started: float
    """Its start time, as returned by `studio.processes.start_time`."""
    child: subprocess.Popen[bytes] | None = None
    """None for a process that another worker or the prefork server started."""
    folder: RunDir | None = None
    """Where the prefork server writes exit codes."""

    @property
    def is_alive(self) -> bool:
        if self.child is not None:
            return self.child.poll() is None
        return _is_same_process(self.pid, self.started)

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None if it is unknown."""
        if self.child is not None:
            return self.child.returncode
        return self.folder.read_exit_code(self.pid) if self.folder else None

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def set_niceness(self, niceness: int) -> None:
        """Lower its CPU priority: the higher the niceness, the more it yields to others."""
        with suppress(psutil.Error):
            psutil.Process(self.pid).nice(niceness)

    def dump_stacks(self) -> None:
        """Make it write the stacks of its threads to its log."""
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
    """Start the process that works on a folder; `besides` is added to its environment."""
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


NO_GPU = -1
"""In place of a GPU's index: the process is to use none."""


def environment(gpu: int | None) -> dict[str, str]:
    """Return the environment of a training process, without the studio's secrets.

    It sees one GPU, none with `NO_GPU`, or all of them with None.
    """
    public = without_secrets(os.environ)
    clean = {name: value for name, value in public.items() if name not in LEAKING_VARIABLES}
    if gpu is not None:
        # Names that mean the same after GPUs were added or taken out, and in CUDA's own order.
        clean |= {VISIBLE: cuda_name(gpu, detect().gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    defaults = OPENMP_ENVIRONMENT | allocator.ENVIRONMENT
    return defaults | clean | {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "true"}


def hub_environment(settings: Settings) -> dict[str, str]:
    """Return the variable that points a training process's libraries to the configured hub."""
    return {"HF_ENDPOINT": settings.hub_endpoint.rstrip("/")}


def find_process(
    pid: int | None, started: float | None, folder: RunDir | None = None
) -> Process | None:
    """Return the process with that pid and start time if it is still alive."""
    if pid is None or started is None or not _is_same_process(pid, started):
        return None
    return Process(pid, started, folder=folder)


def find_training_process(folder: RunDir) -> Process | None:
    """Return the process that locks a run's folder, as recorded in the lock file."""
    holder = _holder(folder)
    return find_process(*holder, folder) if holder else None


def kill_leftovers(folder: RunDir) -> None:
    """Kill whatever still locks a run's folder: its process, or what that has left behind.

    If only the process was killed, its helpers keep the lock; they are in its process group. A pid
    that still names a process group is not reused.
    """
    holder = _holder(folder)
    if holder is None:
        return
    pid, _started = holder
    if leftover := find_process(*holder, folder):
        leftover.kill()
    elif not psutil.pid_exists(pid):
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _holder(folder: RunDir) -> tuple[int, float] | None:
    """Return the pid and start time of the process that locks a folder, or None.

    A copied folder contains another process's record, but is not locked.
    """
    try:
        with folder.lock.open("r+", encoding="ascii") as lock:
            fields = lock.read().split()
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # The process that has just locked it may not have written its record yet.
        return (int(fields[0]), float(fields[1])) if len(fields) == _HOLDER_FIELDS else None
    except (OSError, ValueError):
        return None
    return None


_HOLDER_FIELDS = 2
"""A process is identified by its pid and start time."""


def _is_same_process(pid: int, started: float) -> bool:
    try:
        process = psutil.Process(pid)
        return process_start_time(pid) == started and (
            process.status() != psutil.STATUS_ZOMBIE or _is_awaited(process)
        )
    except psutil.NoSuchProcess:
        return False


def _is_awaited(dead: psutil.Process) -> bool:
    """Whether a prefork server is about to record a process's exit code."""
    parent = dead.parent()
    return parent is not None and PREFORK_SERVER in parent.cmdline()
