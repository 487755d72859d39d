"""The hardware of this machine, detected without torch: CPU, memory, GPUs, training packages."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Literal

import psutil

from studio.gpu_detection import Gpu as Gpu  # noqa: PLC0414 -- also offered from here
from studio.gpu_detection import GpuKind, detect_gpus

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""CPU flags by which Linux reports bfloat16 support: AVX-512, AMX and 64-bit Arm."""

OPENMP_ENVIRONMENT = {"GOMP_SPINCOUNT": "1000"}
"""How many iterations a thread of torch spins before it sleeps.

By default it spins forever, and on a busy machine it spins away the time that the thread it waits
for needs. Forward and backward passes of twelve 192-wide layers, on two threads of two cores, with
six to seven other processes waiting for them: 0.6 to 1.3 a second with 300,000 iterations, 4 to 8
with 10,000, and 9 to 13 with 1,000. On an idle machine, spinning forever was 4 % faster than
300,000.
"""

OPTIONAL_PACKAGES = ("bitsandbytes", "torchao", "flash_attn", "scipy", "sklearn")
"""Packages that only some recipes need; the last two, which come with lm-eval, none does.

Transformers loads scipy and scikit-learn wherever they are installed. Scipy starts threads then,
so that a process which has loaded it cannot be forked.
"""

_CGROUP_LIMIT_FILES = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""The memory limit of a container (cgroup v2 and v1)."""

_CGROUP_USAGE_FILES = ("memory.current", "memory.usage_in_bytes")
"""The memory usage files in the same folders; usage includes the page cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    processor: str
    cores: int
    memory_bytes: int
    """Memory of the host, or the container's limit."""
    native_bf16: bool
    """Whether the CPU supports bfloat16 natively; others emulate it, accurately but slowly."""
    gpus: tuple[Gpu, ...] = ()
    torch: str = ""
    """Version of the installed torch; empty without the training packages."""
    packages: frozenset[str] = frozenset()
    """The optional packages that are installed."""
    product_times: Mapping[str, float] = field(default_factory=dict)
    """Measured time of matrix products by format, relative to float32; empty until measured."""
    gpu_faults: Mapping[int, str] = field(default_factory=dict)
    """Why nothing may use a GPU, by its index; empty if all work."""

    @property
    def device(self) -> Literal["cuda", "cpu"]:
        """The device that runs train on; a CPU build of torch cannot use GPUs."""
        return "cuda" if self.gpus and self.torch and "+cpu" not in self.torch else "cpu"

    @property
    def kinds(self) -> "tuple[Hardware, ...]":
        """The same machine with the GPUs of each kind alone, the best first; itself without GPUs.

        A run gets a GPU of a kind that can train it, so recipes are judged by one kind at a time.
        """
        gpus = self.working_gpus or self.gpus
        kinds = sorted({gpu.kind for gpu in gpus}, key=lambda kind: kind.merit, reverse=True)
        return tuple(self.with_kind(kind) for kind in kinds) or (self,)

    @property
    def working_gpus(self) -> tuple[Gpu, ...]:
        return tuple(gpu for gpu in self.gpus if gpu.index not in self.gpu_faults)

    def with_kind(self, kind: GpuKind) -> "Hardware":
        """Return the same machine with no GPUs but those of a kind."""
        return replace(self, gpus=tuple(gpu for gpu in self.gpus if gpu.kind == kind))

    @property
    def best_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs of the best kind; a run that only those can train waits for one of them."""
        return self.kinds[0].gpus

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability of the best GPUs."""
        return self.best_gpus[0].capability

    @property
    def usable_memory_bytes(self) -> int:
        """The memory one run may use: that of one of the best GPUs, or of the host."""
        return self.memory_bytes if self.device == "cpu" else self.best_gpus[0].memory_bytes

    @property
    def device_name(self) -> str:
        """The device name that a run reports."""
        return self.processor if self.device == "cpu" else self.best_gpus[0].name

    @property
    def title(self) -> str:
        if self.device == "cpu":
            return f"{self.processor}, {self.cores} cores"
        return ", ".join(gpu.name for gpu in self.gpus)


@lru_cache(maxsize=1)
def detect() -> Hardware:
    """Detect the hardware, once per process."""
    model, flags = _processor()
    return Hardware(
        processor=model,
        cores=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        memory_bytes=_total_memory(),
        native_bf16=bool(BF16_FLAGS & flags),
        gpus=detect_gpus(),
        torch=_package_version("torch"),
        packages=frozenset(name for name in OPTIONAL_PACKAGES if _package_version(name)),
    )


def _total_memory() -> int:
    """Return the host's memory in bytes, or the container's limit if that is lower."""
    texts = (
        path.read_text(encoding="ascii").strip() for path in _CGROUP_LIMIT_FILES if path.exists()
    )
    limits = [int(limit) for limit in texts if limit.isdecimal()]
    return min([psutil.virtual_memory().total, *limits])


def free_memory() -> int:
    """Return the free memory in bytes, of the host or within the container's limit."""
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
    """Return the versions of installed packages that can affect the metrics of a run."""
    names = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "safetensors")
    return {
        name: version
        for name in (*names, *OPTIONAL_PACKAGES)
        if (version := _package_version(name))
    }


def _package_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _processor() -> tuple[str, frozenset[str]]:
    """Return the CPU's name and feature flags, if the system reports them."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return "Processor", frozenset()
    pairs = [line.split(":", 1) for line in info.read_text().splitlines() if ":" in line]
    facts = {key.strip(): value.strip() for key, value in pairs}
    flags = facts.get("flags") or facts.get("Features") or ""
    return facts.get("model name", "Processor"), frozenset(flags.split())
