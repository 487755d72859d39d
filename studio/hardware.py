"""What this machine has, read without torch: processor, memory, GPUs, training packages."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Literal

import psutil

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Names under which Linux reports bfloat16 arithmetic: AVX-512, AMX, and 64-bit Arm."""

OPENMP_ENVIRONMENT = {"GOMP_SPINCOUNT": "300000"}
"""How long a thread of torch waits by turning round and round before it sleeps, in turns.

The default is to turn for ever. Alone on a machine that is 4 % faster; beside two busy programs
the same work took 72 s instead of 43.
"""

OPTIONAL_PACKAGES = ("bitsandbytes", "torchao")
"""Packages that some recipes need, and most do not."""

_CGROUP_LIMIT_FILES = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Where a container reads how much memory it may use."""

_CGROUP_USAGE_FILES = ("memory.current", "memory.usage_in_bytes")
"""The files beside these that say how much it uses, page cache included."""

_QUERY = "index,name,memory.total,compute_cap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    index: int
    name: str
    memory_bytes: int
    capability: tuple[int, int]
    """CUDA compute capability, for example (8, 0) for an A100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    processor: str
    cores: int
    memory_bytes: int
    """Of the host, or what a container may use of it."""
    native_bf16: bool
    """The processor multiplies bfloat16 itself; others emulate it, rightly but slowly."""
    gpus: tuple[Gpu, ...] = ()
    torch: str = ""
    """Version of the installed torch, or nothing when the training packages are absent."""
    packages: frozenset[str] = frozenset()
    """The optional packages that are installed."""
    product_times: Mapping[str, float] = field(default_factory=dict)
    """By format: how many times as long as in float32 matrix products take, once measured."""

    @property
    def device(self) -> Literal["cuda", "cpu"]:
        """Where runs train: a CPU build of torch leaves GPUs unused."""
        return "cuda" if self.gpus and self.torch and "+cpu" not in self.torch else "cpu"

    @property
    def capability(self) -> tuple[int, int]:
        """The oldest compute capability among the GPUs: what every one of them can do."""
        return min(gpu.capability for gpu in self.gpus)

    @property
    def usable_memory_bytes(self) -> int:
        """What one run may fill: the smallest GPU, or the memory of the host."""
        if self.device == "cpu":
            return self.memory_bytes
        return min(gpu.memory_bytes for gpu in self.gpus)

    @property
    def device_name(self) -> str:
        """What a run says that it trained on."""
        return self.processor if self.device == "cpu" else self.gpus[0].name

    @property
    def title(self) -> str:
        if self.device == "cpu":
            return f"{self.processor}, {self.cores} cores"
        return ", ".join(gpu.name for gpu in self.gpus)


@lru_cache(maxsize=1)
def detect() -> Hardware:
    """Look at the machine once a process."""
    model, flags = _processor()
    return Hardware(
        processor=model,
        cores=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        memory_bytes=_total_memory(),
        native_bf16=bool(BF16_FLAGS & flags),
        gpus=tuple(_detect_gpus()),
        torch=_package_version("torch"),
        packages=frozenset(name for name in OPTIONAL_PACKAGES if _package_version(name)),
    )


def _total_memory() -> int:
    """Return the host's memory, or a container's share of it where that is less."""
    told = (
        path.read_text(encoding="ascii").strip() for path in _CGROUP_LIMIT_FILES if path.exists()
    )
    limits = [int(limit) for limit in told if limit.isdecimal()]
    return min([psutil.virtual_memory().total, *limits])


def free_memory() -> int:
    """Return how many bytes of memory are free now: of the host, or of a container's share."""
    free = psutil.virtual_memory().available
    limits = [
        (limit, limit.with_name(name))
        for limit, name in zip(_CGROUP_LIMIT_FILES, _CGROUP_USAGE_FILES, strict=True)
    ]
    for limit, used in limits:
        with suppress(OSError, ValueError):  # No limit is the word "max".
            free = min(free, int(limit.read_text("ascii")) - int(used.read_text("ascii")))
    return max(0, free)


def package_versions() -> dict[str, str]:
    """Return the version of each package a run's numbers may depend on; absent ones left out."""
    names = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "safetensors")
    return {
        name: found for name in (*names, *OPTIONAL_PACKAGES) if (found := _package_version(name))
    }


def _package_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _processor() -> tuple[str, frozenset[str]]:
    """Return the processor's name and its feature flags, as far as the system tells them."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return "Processor", frozenset()
    pairs = [line.split(":", 1) for line in info.read_text().splitlines() if ":" in line]
    facts = {key.strip(): value.strip() for key, value in pairs}
    flags = facts.get("flags") or facts.get("Features") or ""
    return facts.get("model name", "Processor"), frozenset(flags.split())


def _detect_gpus() -> list[Gpu]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(  # noqa: S603 -- a fixed command
            command, capture_output=True, text=True, timeout=10, check=False
        )
    except subprocess.TimeoutExpired:
        return []
    return [
        _parse_gpu(line)
        for line in answer.stdout.splitlines()
        if line.count(",") == _QUERY.count(",")
    ]


def _parse_gpu(line: str) -> Gpu:
    index, name, mebibytes, capability = (part.strip() for part in line.split(","))
    major, minor = capability.split(".")
    return Gpu(
        index=int(index),
        name=name,
        memory_bytes=int(mebibytes) * 2**20,
        capability=(int(major), int(minor)),
    )
