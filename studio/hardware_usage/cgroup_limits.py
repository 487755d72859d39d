"""The limits of the control groups this process is in, and what these groups use.

In a container, the kernel reports the host's CPU and memory; what counts are the limits of the
container. A group's limit also holds for the groups in it, so the tightest on the path is returned.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

UNLIMITED_BYTES = 2**60
"""Version 1 writes "no limit" as the largest multiple of a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupUsage:
    """None where there is no limit."""

    cores: float | None = None
    cpu_seconds: float | None = None
    """CPU time used by the group with that limit since it was created."""
    memory_limit_bytes: int | None = None
    memory_used_bytes: int | None = None
    """Without the page cache that the kernel can reclaim at once."""


@dataclass(frozen=True, slots=True)
class _CpuLimit:
    cores: float
    seconds: float | None


@dataclass(frozen=True, slots=True)
class _MemoryLimit:
    limit: int
    used: int


def read_cgroup_usage(root: Path = Path("/")) -> CgroupUsage:
    """Read the tightest limits, and the usage that counts against them."""
    cpu = min(_cpu_limits(root), key=lambda found: found.cores, default=None)
    memory = min(_memory_limits(root), key=lambda found: found.limit - found.used, default=None)
    return CgroupUsage(
        cores=cpu.cores if cpu else None,
        cpu_seconds=cpu.seconds if cpu else None,
        memory_limit_bytes=memory.limit if memory else None,
        memory_used_bytes=memory.used if memory else None,
    )


def _cpu_limits(root: Path) -> Iterator[_CpuLimit]:
    for group in _groups(root, ""):
        with suppress(OSError, ValueError):
            quota, period = (group / "cpu.max").read_text("ascii").split()
            microseconds = _fields(group / "cpu.stat").get("usage_usec")
            seconds = None if microseconds is None else microseconds / 1e6
            yield _CpuLimit(int(quota) / int(period), seconds)  # No limit is the word "max".
    for group, accounts in zip(_groups(root, "cpu"), _groups(root, "cpuacct"), strict=False):
        with suppress(OSError, ValueError):
            quota_us = _number(group / "cpu.cfs_quota_us")
            if quota_us > 0:
                cores = quota_us / _number(group / "cpu.cfs_period_us")
                yield _CpuLimit(cores, _number(accounts / "cpuacct.usage") / 1e9)


def _memory_limits(root: Path) -> Iterator[_MemoryLimit]:
    for group in _groups(root, ""):
        with suppress(OSError, ValueError):
            cache = _fields(group / "memory.stat").get("inactive_file", 0)
            used = _number(group / "memory.current") - cache
            yield _MemoryLimit(_number(group / "memory.max"), max(0, used))
    for group in _groups(root, "memory"):
        with suppress(OSError, ValueError):
            limit = _number(group / "memory.limit_in_bytes")
            if limit < UNLIMITED_BYTES:
                cache = _fields(group / "memory.stat").get("total_inactive_file", 0)
                used = _number(group / "memory.usage_in_bytes") - cache
                yield _MemoryLimit(limit, max(0, used))


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield this process's group and those around it; the controller of version 2 is ""."""
    with suppress(OSError, ValueError):
        own_path = _own_groups(root).get(controller)
        mount = _mount_point(root, controller)
        if own_path is None or mount is None:
            return
        group = mount / own_path.lstrip("/")
        if not group.is_dir():  # Mounted from within the container, but named from outside.
            group = mount
        yield from (path for path in (group, *group.parents) if path.is_relative_to(mount))


def _own_groups(root: Path) -> dict[str, str]:
    """Return the path of this process's group by controller."""
    lines = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    parts = [line.split(":", 2) for line in lines]
    return {name: path for _id, names, path in parts for name in names.split(",")}


def _mount_point(root: Path, controller: str) -> Path | None:
    kind = "cgroup" if controller else "cgroup2"
    for line in (root / "proc/self/mounts").read_text("utf-8").splitlines():
        _device, point, system, options, *_rest = line.split()
        if system == kind and (not controller or controller in options.split(",")):
            return root / point.lstrip("/")
    return None


def _number(path: Path) -> int:
    return int(path.read_text("ascii"))


def _fields(path: Path) -> dict[str, int]:
    """Return the counters of a file with a name and a number on each line."""
    with suppress(OSError, ValueError):
        pairs = (line.split() for line in path.read_text("ascii").splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs}
    return {}
