"""The GPUs that the studio may use, as nvidia-smi lists them: whole ones and MIG instances.

`CUDA_VISIBLE_DEVICES`, if the studio is started with it, names the only GPUs that runs get. CUDA
reads indexes, prefixes of UUIDs and MIG UUIDs, and ignores everything from the first name that it
does not know:
https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#env-vars
Indexes count in the order of the PCI bus, as nvidia-smi does.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from psutil import virtual_memory

VISIBLE = "CUDA_VISIBLE_DEVICES"
_OF_STUDIO = "MANTISSA_VISIBLE_GPUS"
"""What `CUDA_VISIBLE_DEVICES` said to the studio, for processes that it hides all GPUs from."""

_ALL = "all"
BF16_CAPABILITY = (8, 0)
"""The least compute capability with bfloat16 in hardware."""

_FIELDS = ("index", "name", "memory.total", "compute_cap", "uuid", "mig.mode.current")
_ROW = re.compile(
    r"(?P<index>\d+), (?P<name>[^,]+), (?:(?P<mebibytes>\d+)|\[.*\]), "
    r"(?P<major>\d+)\.(?P<minor>\d+), (?:(?P<uuid>GPU-[^,]+)|[^,]*), (?P<mode>[^,]*)"
)
"""What it prints of each GPU. One that shares the machine's memory has none of its own."""

_TIMEOUT_SECONDS = 10
_WHOLE = re.compile(r"GPU (\d+): ")
_INSTANCE = re.compile(r"\s+MIG (?P<profile>\S+)\s.*\(UUID: (?P<uuid>MIG-[^)\s]+)\)")
_PROFILE_GIBIBYTES = re.compile(r"(\d+)gb")

_INSTANCE_SHARE = 0.95
"""The least part of its profile's memory that an instance has: 4,864 MiB of `1g.5gb`.

https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU, or an instance of one, which a run has for itself."""

    index: int
    """Its number here. Instances are numbered after the whole GPUs."""
    name: str
    memory_bytes: int
    capability: tuple[int, int]
    """CUDA compute capability, such as (8, 0) for an A100."""
    uuid: str = ""
    """What stays the same when GPUs are added or taken out; empty where it is unknown."""
    part_of: int | None = None
    """The index of the GPU that it is an instance of; None for a whole one."""

    @property
    def cuda_name(self) -> str:
        """How `CUDA_VISIBLE_DEVICES` names it."""
        return self.uuid or str(self.index)

    @property
    def kind(self) -> "GpuKind":
        return GpuKind(self.capability, self.memory_bytes, self.name)


class GpuKind(NamedTuple):
    """What GPUs of a machine have in common."""

    capability: tuple[int, int]
    memory_bytes: int
    name: str

    @property
    def merit(self) -> tuple[bool, int, tuple[int, int]]:
        """What most runs need, by which the best kind is chosen: bfloat16 first, then memory."""
        return self.capability >= BF16_CAPABILITY, self.memory_bytes, self.capability


def cuda_name(index: int, gpus: Sequence[Gpu]) -> str:
    """Return how `CUDA_VISIBLE_DEVICES` names a GPU; its index if nothing better is known."""
    return next((gpu.cuda_name for gpu in gpus if gpu.index == index), str(index))


def hide_gpus(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a process that uses no GPU, but may ask what the machine has."""
    return {VISIBLE: "", _OF_STUDIO: environ.get(_OF_STUDIO, environ.get(VISIBLE, _ALL))}


def detect_gpus(environ: Mapping[str, str] = os.environ) -> tuple[Gpu, ...]:
    """Return the GPUs that runs may use; none without NVIDIA's driver, or if it does not answer.

    A process that was given a GPU finds that one alone.
    """
    listed = _ask(f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
    rows = [_parse_row(found) for line in listed if (found := _ROW.fullmatch(line.strip()))]
    instances = _list_instances(_ask("-L")) if any(is_split for _gpu, is_split in rows) else {}
    whole = [gpu for gpu, is_split in rows if not is_split]
    gpus = (*whole, *_number_instances([gpu for gpu, _is_split in rows], instances))
    visible = environ.get(VISIBLE) or environ.get(_OF_STUDIO, environ.get(VISIBLE, _ALL))
    return gpus if visible == _ALL else tuple(_choose(gpus, visible))


def _ask(*arguments: str) -> list[str]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        answer = subprocess.run(  # noqa: S603 -- fixed commands
            [tool, *arguments],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return []
    return answer.stdout.splitlines()


def _parse_row(row: re.Match[str]) -> tuple[Gpu, bool]:
    """Return a GPU, and whether it is split into instances, so that no run can use all of it."""
    shared = row["mebibytes"] is None
    gpu = Gpu(
        index=int(row["index"]),
        name=row["name"],
        memory_bytes=virtual_memory().total if shared else int(row["mebibytes"]) * 2**20,
        capability=(int(row["major"]), int(row["minor"])),
        uuid=row["uuid"] or "",
    )
    return gpu, row["mode"] == "Enabled"


def _list_instances(lines: Sequence[str]) -> dict[int, list[tuple[str, str]]]:
    """Return the profile and UUID of each instance, by the index of its GPU."""
    found: dict[int, list[tuple[str, str]]] = {}
    index = -1
    for line in lines:
        if whole := _WHOLE.match(line):
            index = int(whole[1])
        elif instance := _INSTANCE.match(line):
            found.setdefault(index, []).append((instance["profile"], instance["uuid"]))
    return found


def _number_instances(
    split: Sequence[Gpu], instances: Mapping[int, Sequence[tuple[str, str]]]
) -> Iterator[Gpu]:
    number = len(split)
    for gpu in split:
        for profile, uuid in instances.get(gpu.index, ()):
            gibibytes = _PROFILE_GIBIBYTES.search(profile)
            memory = int(_INSTANCE_SHARE * int(gibibytes[1]) * 2**30) if gibibytes else 0
            yield Gpu(
                index=number,
                name=f"{gpu.name} MIG {profile}",
                memory_bytes=memory,
                capability=gpu.capability,
                uuid=uuid,
                part_of=gpu.index,
            )
            number += 1


def _choose(gpus: Sequence[Gpu], visible: str) -> Iterator[Gpu]:
    """Yield the GPUs that a value of `CUDA_VISIBLE_DEVICES` names, in its order."""
    chosen: set[int] = set()
    for name in visible.split(","):
        gpu = _find(gpus, name.strip())
        if gpu is None or gpu.index in chosen:
            return
        chosen.add(gpu.index)
        yield gpu


def _find(gpus: Sequence[Gpu], name: str) -> Gpu | None:
    if name.isdecimal():
        return next((gpu for gpu in gpus if gpu.index == int(name)), None)
    named = [gpu for gpu in gpus if name and gpu.uuid.startswith(name)]
    return named[0] if len(named) == 1 else None
