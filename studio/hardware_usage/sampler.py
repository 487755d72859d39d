"""Samples this machine: each sample covers the time since the previous one."""

import os
import platform
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from studio.hardware_usage.cgroup_limits import CgroupUsage, read_cgroup_usage
from studio.hardware_usage.gpu_sensors import GpuSensors
from studio.hardware_usage.processes import ProcessScanner, ProcessUsage
from studio.hardware_usage.usage import HardwareUsage, RunUsage

_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "acpitz")
"""The names under which kernels list the CPU's temperature, the most exact first."""


class RunProcess(NamedTuple):
    pid: int
    gpu: int | None


@dataclass(frozen=True, slots=True)
class _Counters:
    """Counters that only grow; their growth between two samples is a rate."""

    at: float
    cgroup_cpu_seconds: float | None
    swapped_bytes: int
    disk: tuple[int, int] | None

    @classmethod
    def read(cls, cgroup: CgroupUsage) -> "_Counters":
        swap = psutil.swap_memory()
        disk = psutil.disk_io_counters()
        return cls(
            time.monotonic(),
            cgroup.cpu_seconds,
            swap.sin + swap.sout,
            (disk.read_bytes, disk.write_bytes) if disk else None,
        )


@dataclass(slots=True)
class Sampler:
    home: Path
    gpus: GpuSensors = field(default_factory=GpuSensors.open)
    scanner: ProcessScanner = field(default_factory=ProcessScanner)
    read_cgroup: Callable[[], CgroupUsage] = read_cgroup_usage
    _before: _Counters = field(init=False)

    def __post_init__(self) -> None:
        psutil.cpu_percent(percpu=True)
        self.scanner.scan({})
        self._before = _Counters.read(self.read_cgroup())

    def sample(self, runs: Mapping[int, RunProcess]) -> HardwareUsage:
        """Measure the load since the previous sample; `runs` are the live ones, by ID."""
        cgroup = self.read_cgroup()
        counters, before = _Counters.read(cgroup), self._before
        self._before = counters
        seconds = max(1e-3, counters.at - before.at)
        loads = tuple(round(load / 100, 3) for load in psutil.cpu_percent(percpu=True))
        usable = _usable_loads(loads)
        cores = min(float(len(usable)), cgroup.cores or float("inf"))
        cpu = _busy_cores(usable, counters, before, seconds) / cores
        processes = self.scanner.scan({process.pid: run for run, process in runs.items()})
        memory = _memory(cgroup)
        swap, disk = psutil.swap_memory(), shutil.disk_usage(self.home)
        reads, writes = _disk_rates(counters, before, seconds)
        return HardwareUsage(
            host=platform.node(),
            cores=round(cores, 2),
            cpu=_share(cpu),
            core_loads=loads,
            celsius=cpu_temperature(),
            memory_used_bytes=memory[0],
            memory_total_bytes=memory[1],
            swap_used_bytes=swap.used,
            swap_total_bytes=swap.total,
            swapped_per_second=(counters.swapped_bytes - before.swapped_bytes) / seconds,
            disk_free_bytes=disk.free,
            disk_total_bytes=disk.total,
            disk_read_per_second=reads,
            disk_written_per_second=writes,
            others_cpu=_share(cpu - processes.own_cores / cores) if processes else None,
            busiest_other=processes.busiest_other if processes else "",
            busiest_other_cpu=_share(processes.busiest_other_cores / cores) if processes else 0.0,
            runs=_run_usage(runs, processes, cores),
            gpus=self.gpus.read(processes.own_pids if processes else ()),
        )


def _run_usage(
    runs: Mapping[int, RunProcess], processes: ProcessUsage | None, cores: float
) -> tuple[RunUsage, ...]:
    if processes is None:
        return ()
    return tuple(
        RunUsage(
            run_id=run,
            cpu=_share(processes.run_cores[run] / cores),
            memory_bytes=processes.run_memory[run],
            gpu=process.gpu,
        )
        for run, process in runs.items()
        if run in processes.run_cores
    )


def _usable_loads(loads: tuple[float, ...]) -> tuple[float, ...]:
    """Return the loads of the cores this process may run on."""
    if not hasattr(os, "sched_getaffinity"):
        return loads
    return tuple(loads[i] for i in os.sched_getaffinity(0) if i < len(loads)) or loads


def _busy_cores(
    loads: tuple[float, ...], now: _Counters, before: _Counters, seconds: float
) -> float:
    """Return how many cores are in use: of the container if its CPU is limited."""
    if now.cgroup_cpu_seconds is not None and before.cgroup_cpu_seconds is not None:
        return (now.cgroup_cpu_seconds - before.cgroup_cpu_seconds) / seconds
    return sum(loads)


def _memory(cgroup: CgroupUsage) -> tuple[int, int]:
    """Return the memory in use and in total: of the container if its memory is limited."""
    host = psutil.virtual_memory()
    limit, used = cgroup.memory_limit_bytes, cgroup.memory_used_bytes
    if limit is not None and used is not None and limit < host.total:
        return used, limit
    return host.total - host.available, host.total


def _disk_rates(
    now: _Counters, before: _Counters, seconds: float
) -> tuple[float | None, float | None]:
    if now.disk is None or before.disk is None:
        return None, None
    read, written = (max(0, b - a) / seconds for a, b in zip(before.disk, now.disk, strict=True))
    return read, written


def cpu_temperature() -> float | None:
    """Return the temperature of the hottest CPU sensor, where the kernel shows one."""
    read = getattr(psutil, "sensors_temperatures", None)
    sensors = read() if read else {}
    known: list[Any] = next((sensors[name] for name in _CPU_SENSORS if sensors.get(name)), [])
    return max((entry.current for entry in known), default=None)


def _share(value: float) -> float:
    return round(min(1.0, max(0.0, value)), 3)
