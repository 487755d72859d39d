"""A control group for each training process: its memory limited, its end counted, its tree ended.

Linux counts in a group whom it killed there for want of memory. Without one, a SIGKILL says
nothing of its reason. Version 2 is what systems have today; version 1 is still met in containers.
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
    """How a version of control groups calls its files."""

    limits: tuple[str, ...]
    counter: str
    settings: Mapping[str, str]


_V2 = _Layout(("memory.max",), "memory.events", {"memory.swap.max": "0", "memory.oom.group": "1"})
_V1 = _Layout(("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), "memory.oom_control", {})


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The group of one process and of all that it starts."""

    path: Path
    layout: _Layout

    def add(self, pid: int) -> None:
        with suppress(OSError):  # it has ended already
            _write(self.path / "cgroup.procs", str(pid))

    @property
    def oom_kills(self) -> int:
        """How many of its processes the system has killed for want of memory."""
        with suppress(OSError):
            lines = (self.path / self.layout.counter).read_text(encoding="ascii").splitlines()
            return int(dict(line.split()[:2] for line in lines).get("oom_kill", 0))
        return 0

    def kill(self) -> None:
        """End every process in it, whatever session it has moved to."""
        with suppress(OSError):
            switch = self.path / "cgroup.kill"
            if switch.exists():
                _write(switch, "1")
                return
            for pid in (self.path / "cgroup.procs").read_text(encoding="ascii").split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)

    def remove(self) -> None:
        with suppress(OSError):  # what is left of it goes with the next of its name
            self.path.rmdir()


@dataclass(frozen=True, slots=True)
class CgroupParent:
    """A group that is ours to divide."""

    root: Path
    layout: _Layout

    def create(self, pid: int, limit: int | None) -> Cgroup | None:
        """Put a process into a group of its own, or return None where that is not allowed."""
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
        # What it has started already would stay behind; what it starts from now on is in the group.
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(pid).children(recursive=True):
                group.add(child.pid)
        return group

    def group_of(self, pid: int) -> Cgroup:
        return Cgroup(self.root / f"mantissa-{pid}", self.layout)


def find_parent() -> CgroupParent | None:
    """Return the group that we are in if we may divide its memory, or None."""
    for root, layout in _candidates():
        if layout is _V2:
            with suppress(OSError):
                _write(root / "cgroup.subtree_control", "+memory")
        groups = CgroupParent(root, layout)
        if _can_divide(groups):
            return groups
    return None


def _candidates() -> Iterator[tuple[Path, _Layout]]:
    """Yield where this process is, in each hierarchy that counts memory."""
    if not (_MOUNTS.exists() and _OWN_CGROUP.exists()):
        return
    own = dict(line.split(":", 2)[1:] for line in _OWN_CGROUP.read_text().splitlines())
    for line in _MOUNTS.read_text().splitlines():
        _device, place, kind, options, *_rest = line.split()
        if kind == "cgroup2" and "" in own:
            yield Path(place) / own[""].lstrip("/"), _V2
        elif kind == "cgroup" and "memory" in options.split(",") and "memory" in own:
            yield Path(place) / own["memory"].lstrip("/"), _V1


def _can_divide(groups: CgroupParent) -> bool:
    """Whether a group made here counts and limits memory."""
    trial = Cgroup(groups.root / f"mantissa-trial-{os.getpid()}", groups.layout)
    try:
        trial.path.mkdir()
    except OSError:
        return False
    try:
        return all((trial.path / name).exists() for name in (groups.layout.counter, "cgroup.procs"))
    finally:
        trial.remove()


def _write(path: Path, text: str) -> None:
    # One write call: the kernel reads each by itself.
    with path.open("wb", buffering=0) as file:
        file.write(text.encode())
