"""A control group for each training process: limit memory, count OOM kills, kill the tree.

Linux counts the OOM kills in each group. Without a group, a SIGKILL does not reveal its reason.
Current systems use version 2; version 1 still occurs in containers.
"""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

_MOUNTS = Path("/proc/self/mounts")
_OWN_CGROUP = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class _Layout:
    """The file names of a cgroup version."""

    limits: tuple[str, ...]
    counter: str
    settings: Mapping[str, str]


_V2 = _Layout(("memory.max",), "memory.events", {"memory.swap.max": "0", "memory.oom.group": "1"})
_V1 = _Layout(("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), "memory.oom_control", {})


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The group of one process and all its descendants."""

    path: Path
    layout: _Layout

    def add(self, pid: int) -> None:
        with suppress(OSError):  # it has already ended
            _write(self.path / "cgroup.procs", str(pid))

    @property
    def oom_kills(self) -> int:
        """How many of its processes the kernel has killed because memory ran out."""
        with suppress(OSError):
            lines = (self.path / self.layout.counter).read_text(encoding="ascii").splitlines()
            return int(dict(line.split()[:2] for line in lines).get("oom_kill", 0))
        return 0

    def kill(self) -> None:
        """Kill every process in the group, whatever session it has moved to."""
        with suppress(OSError):
            switch = self.path / "cgroup.kill"
            if switch.exists():
                _write(switch, "1")
                return
            for pid in (self.path / "cgroup.procs").read_text(encoding="ascii").split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)

    def remove(self) -> None:
        with suppress(OSError):  # a leftover is removed when its name is used again
            self.path.rmdir()


@dataclass(frozen=True, slots=True)
class CgroupParent:
    """A group in which the worker may create others."""

    root: Path
    layout: _Layout

    def create(self, pid: int, limit: int | None) -> Cgroup | None:
        """Put a process into its own group, or return None if that is not permitted."""
        group = self.group_of(pid)
        group.remove()
        try:
            group.path.mkdir()
            for name in self.layout.limits if limit else ():
                if (group.path / name).exists():
                    _write(group.path / name, str(limit))
        except OSError:
            group.remove()
            return None
        for name, value in self.layout.settings.items():
            with suppress(OSError):
                _write(group.path / name, value)
        group.add(pid)
        # Children it has already started would stay outside; later ones join the group by
        # themselves.
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(pid).children(recursive=True):
                group.add(child.pid)
        return group

    def group_of(self, pid: int) -> Cgroup:
        return Cgroup(self.root / f"mantissa-{pid}", self.layout)


def find_parent() -> CgroupParent | None:
    """Return this process's group if the worker may manage memory in it, or None."""
    for root, layout in _candidates():
        if layout is _V2:
            with suppress(OSError):
                _write(root / "cgroup.subtree_control", "+memory")
        groups = CgroupParent(root, layout)
        if _can_divide(groups):
            return groups
    return None


def _candidates() -> Iterator[tuple[Path, _Layout]]:
    """Yield this process's group in each hierarchy with a memory controller."""
    if not (_MOUNTS.exists() and _OWN_CGROUP.exists()):
        return
    own_groups = dict(line.split(":", 2)[1:] for line in _OWN_CGROUP.read_text().splitlines())
    for line in _MOUNTS.read_text().splitlines():
        _device, mount_point, kind, options, *_rest = line.split()
        if kind == "cgroup2" and "" in own_groups:
            yield Path(mount_point) / own_groups[""].lstrip("/"), _V2
        elif kind == "cgroup" and "memory" in options.split(",") and "memory" in own_groups:
            yield Path(mount_point) / own_groups["memory"].lstrip("/"), _V1


def _can_divide(groups: CgroupParent) -> bool:
    """Whether a group created here counts and limits memory."""
    trial_group = Cgroup(groups.root / f"mantissa-trial-{os.getpid()}", groups.layout)
    try:
        trial_group.path.mkdir()
    except OSError:
        return False
    try:
        return all(
            (trial_group.path / name).exists() for name in (groups.layout.counter, "cgroup.procs")
        )
    finally:
        trial_group.remove()


def _write(path: Path, text: str) -> None:
    # Use a single write call: the kernel parses each one separately.
    with path.open("wb", buffering=0) as file:
        file.write(text.encode())
