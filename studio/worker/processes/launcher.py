"""Train on this machine: one process per attempt.

Nothing above it knows about processes. An attempt has a handle, which only the launcher interprets
and which is stored in the database, so that another worker can find the attempt again.
"""

import resource
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from studio.hardware import Hardware, detect
from studio.protocols.run_dir import RunDir
from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.worker.processes import process
from studio.worker.processes.cgroups import CgroupParent
from studio.worker.processes.prefork_client import PreforkClient
from studio.worker.processes.process import RUNNER, Process

_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
_OOM_COUNTER_FILES = (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat"))
"""Where Linux counts OOM kills: in this group, or for the whole system."""


def boot_id() -> str:
    """Return an id of this boot; pids of another boot mean nothing."""
    return _BOOT_ID_FILE.read_text(encoding="ascii").strip() if _BOOT_ID_FILE.exists() else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    run_id: int
    attempt: int
    folder: RunDir
    gpu: int | None = None
    packages: frozenset[str] = frozenset()
    """The optional packages that the recipe needs."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment variables for this attempt only."""


@dataclass(slots=True)
class LocalLauncher:
    """Launches processes. A handle consists of pid, process start time and boot id."""

    command: Sequence[str] = RUNNER
    wanted_slots: int | None = None
    hardware: Hardware = field(default_factory=detect)
    boot: str = field(default_factory=boot_id)
    prefork: PreforkClient | None = None
    """Starts attempts faster than a new process would, if available."""
    cgroups: CgroupParent | None = None
    """Creates a control group for each attempt; None if that is not permitted."""
    memory_limit: int | None = None
    """Limit for an attempt's memory in bytes."""
    _children: dict[str, Process] = field(default_factory=dict)
    _folders: dict[str, RunDir] = field(default_factory=dict)
    _kills: dict[str, int] = field(default_factory=dict)
    _ends: dict[str, ProcessExit] = field(default_factory=dict)

    def open(self) -> None:
        """Prepare whatever makes attempts start faster."""
        if self.prefork is not None:
            self.prefork.open()

    def want(self) -> None:
        """Note that an attempt may start soon; without that, the preparation ends at some time."""
        if self.prefork is not None:
            self.prefork.want()

    def tick(self) -> None:
        """Maintain that preparation; called often, never blocks."""
        if self.prefork is not None:
            self.prefork.tick()

    @property
    def news(self) -> socket.socket | None:
        """What is readable once that preparation needs maintenance, if it can be waited for."""
        connection = self.prefork.connection if self.prefork is not None else None
        return connection.socket if connection is not None else None

    def close(self) -> None:
        """Release it; attempts keep running."""
        if self.prefork is not None:
            self.prefork.close()

    def submit(self, spec: LaunchSpec) -> str:
        """Start an attempt and return its handle.

        Raises:
            OSError: it could not be started.

        """
        # A worker killed during a launch may have left a process that nothing monitors.
        process.kill_leftovers(spec.folder)
        kills = count_oom_kills()
        # The prefork server has not loaded the optional packages a recipe may need.
        start = process.start if self.prefork is None or spec.packages else self.prefork.start
        started = start(spec.folder, gpu=spec.gpu, command=self.command, besides=spec.secrets)
        self._confine(started.pid)
        handle = self._handle(started)
        self._children[handle], self._kills[handle] = started, kills
        return handle

    def poll(self, handle: str) -> ProcessExit | None:
        """Return how the attempt ended, or None while it is running."""
        pid, start_time, boot = _parse_handle(handle)
        if boot not in ("", self.boot):
            return ProcessExit(rebooted=True)
        if handle in self._ends:
            return self._ends[handle]
        child = self._children.get(handle)
        if (child or process.find_process(pid, start_time) or _NO_PROCESS).is_alive:
            return None
        return self._ends.setdefault(handle, self._end(handle, pid))

    def waits_for(self, handle: str) -> str | None:  # noqa: ARG002 -- a process starts at once
        """Return None: attempts wait for nothing before they start."""
        return None

    def stop(self, handle: str) -> None:
        """Ask the attempt to stop. Repeated calls, and calls for ended attempts, do nothing."""
        self._process(handle).terminate()

    def kill(self, handle: str) -> None:
        """Kill the attempt and everything it has started."""
        process = self._process(handle)
        process.kill()
        if self.cgroups and process.pid:
            self.cgroups.group_of(process.pid).kill()

    def dump_stacks(self, handle: str) -> None:
        """Make the attempt write its stacks to its log."""
        self._process(handle).dump_stacks()

    def pid(self, handle: str) -> int:
        """Return the process of an attempt; 0 if it has ended."""
        return self._process(handle).pid

    def adopt(self, spec: LaunchSpec, handle: str) -> str:
        """Take over an attempt that another worker launched. Return its handle.

        An empty handle means that the attempt may have been started without being recorded; return
        "" if it was not started.
        """
        running = None if handle else process.find_training_process(spec.folder)
        handle = self._handle(running) if running else handle
        self._folders[handle] = spec.folder
        return handle

    def slots(self) -> int:
        """Return how many runs can train at once, at one slot each."""
        gpus = self.hardware.gpus if self.hardware.device == "cuda" else ()
        return self.wanted_slots or max(1, len(gpus))

    def _confine(self, pid: int) -> None:
        """Put a process into its own group; if that fails, at least limit its memory."""
        if self.cgroups and self.cgroups.create(pid, self.memory_limit):
            return
        if self.memory_limit and sys.platform == "linux" and self.hardware.device == "cpu":
            with suppress(ProcessLookupError):
                limit = (self.memory_limit, self.memory_limit)
                resource.prlimit(pid, resource.RLIMIT_DATA, limit)

    def _end(self, handle: str, pid: int) -> ProcessExit:
        """Return how a process ended, and clean up after it. Called once per attempt."""
        child = self._children.get(handle)
        folder = self._folders.get(handle)
        code = child.exit_code if child else folder.read_exit_code(pid) if folder else None
        kills = count_oom_kills() - self._kills.get(handle, count_oom_kills())
        group = self.cgroups.group_of(pid) if self.cgroups else None
        if group and group.path.exists():
            kills = group.oom_kills
            group.kill()
            group.remove()
        return ProcessExit(exit_code=code, out_of_memory=kills > 0 and code in (None, -9))

    def _handle(self, started: Process) -> str:
        return f"{started.pid}@{started.started!r}@{self.boot}"

    def _process(self, handle: str) -> Process:
        pid, start_time, boot = _parse_handle(handle)
        running = process.find_process(pid, start_time) if boot in ("", self.boot) else None
        return self._children.get(handle) or running or _NO_PROCESS


def count_oom_kills() -> int:
    """Return how many processes the kernel has killed because memory ran out, if it counts them."""
    for path in _OOM_COUNTER_FILES:
        if path.exists():
            lines = path.read_text(encoding="ascii").splitlines()
            counts = dict(line.split()[:2] for line in lines)
            if "oom_kill" in counts:
                return int(counts["oom_kill"])
    return 0


_NO_PROCESS = Process(pid=0, started=0.0)


def _parse_handle(handle: str) -> tuple[int, float, str]:
    pid, start_time, boot = handle.split("@", 2)
    return int(pid), float(start_time), boot
