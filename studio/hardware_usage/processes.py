"""Which processes use the CPU: those of each run, those of the studio, and others.

Reading all processes costs tens of microseconds for each, so `ProcessScanner` reads them rarely
enough to use at most half a percent of a core, on a machine with thousands of them too; a tenth of
a percent while nothing trains.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

MIN_SCAN_SECONDS = 4.0
REST = 200
"""A scan that took a second of CPU time is repeated after this many seconds."""

IDLE_REST = 1000
"""While no run trains."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    pid: int
    parent: int
    name: str
    cpu_seconds: float
    memory_bytes: int
    started: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUsage:
    """CPU in cores, since the scan before."""

    run_cores: Mapping[int, float] = field(default_factory=dict)
    run_memory: Mapping[int, int] = field(default_factory=dict)
    own_cores: float = 0.0
    """Of all the studio's processes, runs included."""
    own_pids: frozenset[int] = frozenset()
    busiest_other: str = ""
    busiest_other_cores: float = 0.0


Processes = Mapping[int, ProcessInfo]


def list_processes() -> dict[int, ProcessInfo]:
    """Read all visible processes; memory only where it is cheap to read with the rest."""
    fields = ["pid", "ppid", "name", "cpu_times", "memory_info", "create_time"]
    found = {}
    for process in psutil.process_iter(fields):
        facts = process.info
        if facts["cpu_times"] is None or facts["memory_info"] is None:
            continue  # It belongs to another user, on a system that hides those.
        seconds = facts["cpu_times"].user + facts["cpu_times"].system
        found[process.pid] = ProcessInfo(
            process.pid,
            facts["ppid"],
            facts["name"],
            seconds,
            facts["memory_info"].rss,
            facts["create_time"] or 0.0,
        )
    return found


def compare_scans(
    before: Processes,
    after: Processes,
    seconds: float,
    run_pids: Mapping[int, int],
    own_roots: frozenset[int],
) -> ProcessUsage:
    """Attribute the CPU time between two scans to runs, to the studio, and to others.

    `run_pids` maps the first process of a run to the run; `own_roots` are the studio's other
    processes. What they start belongs to them.
    """
    cores = {pid: _cores(before.get(pid), process, seconds) for pid, process in after.items()}
    owners = {pid: _owner(pid, after, run_pids, own_roots) for pid in after}
    others = [pid for pid, owner in owners.items() if owner is None]
    busiest = max(others, key=lambda pid: cores[pid], default=None)
    runs = set(run_pids.values())
    return ProcessUsage(
        run_cores={r: sum(cores[p] for p, owner in owners.items() if owner == r) for r in runs},
        run_memory={
            r: sum(after[p].memory_bytes for p, owner in owners.items() if owner == r) for r in runs
        },
        own_cores=sum(cores[pid] for pid, owner in owners.items() if owner is not None),
        own_pids=frozenset(pid for pid, owner in owners.items() if owner is not None),
        busiest_other=after[busiest].name if busiest is not None else "",
        busiest_other_cores=cores[busiest] if busiest is not None else 0.0,
    )


def _cores(before: ProcessInfo | None, after: ProcessInfo, seconds: float) -> float:
    # A pid that was reused starts from zero.
    same = before is not None and before.started == after.started
    spent = after.cpu_seconds - (before.cpu_seconds if before and same else 0.0)
    return max(0.0, spent) / seconds


STUDIO = 0
"""The owner of the studio's processes that belong to no run; IDs of runs start at 1."""


def _owner(
    pid: int, processes: Processes, run_pids: Mapping[int, int], own_roots: frozenset[int]
) -> int | None:
    """Return the run a process belongs to, `STUDIO`, or None; the nearest ancestor decides."""
    seen: set[int] = set()
    while pid in processes and pid not in seen:
        if pid in run_pids:
            return run_pids[pid]
        if pid in own_roots:
            return STUDIO
        seen.add(pid)
        pid = processes[pid].parent
    return None


def studio_processes() -> frozenset[int]:
    """Return this process, and the one that started it if that is the studio too."""
    own = {os.getpid()}
    try:
        parent = psutil.Process(os.getppid())
        if any(Path(part).name == "studio" for part in parent.cmdline()[:4]):
            own.add(parent.pid)
    except psutil.Error:
        pass
    return frozenset(own)


@dataclass(slots=True)
class ProcessScanner:
    own_roots: frozenset[int] = field(default_factory=studio_processes)
    _before: Processes = field(default_factory=dict)
    _before_at: float = 0.0
    _due_at: float = float("-inf")
    _usage: ProcessUsage | None = None
    _had_runs: bool = False

    def scan(self, run_pids: Mapping[int, int]) -> ProcessUsage | None:
        """Return the usage since the last scan, or the previous one if the next is not due."""
        began, cpu_before = time.monotonic(), time.thread_time()
        is_first_run = bool(run_pids) and not self._had_runs
        if began < self._due_at and not is_first_run:
            return self._usage
        self._had_runs = bool(run_pids)
        after = list_processes()
        if self._before:
            seconds = began - self._before_at
            self._usage = compare_scans(self._before, after, seconds, run_pids, self.own_roots)
        self._before, self._before_at = after, began
        took = time.thread_time() - cpu_before
        rest = (REST if run_pids or not self._usage else IDLE_REST) * took
        self._due_at = began + max(MIN_SCAN_SECONDS if self._usage else 0.0, rest)
        return self._usage
