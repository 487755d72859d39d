"""One sample of a machine's load, and how several samples become one."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

Numbers = Sequence[float]
T = TypeVar("T", bound=BaseModel)


class RunUsage(BaseModel):
    """What the processes of one run use."""

    model_config = ConfigDict(frozen=True)

    run_id: int
    cpu: float
    """As a share of the machine's CPU."""
    memory_bytes: int
    gpu: int | None = None
    """The index of the GPU it trains on."""


class GpuUsage(BaseModel):
    """The load of one GPU; None for what its driver does not report."""

    model_config = ConfigDict(frozen=True)

    index: int
    name: str
    busy: float | None = None
    """The share of time in which it computed anything."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    others_memory_bytes: int | None = None
    """Memory of processes that are not the studio's; None if it is not known which they are."""
    celsius: float | None = None
    watts: float | None = None
    watts_limit: float | None = None
    throttled_by: tuple[str, ...] = ()
    """Why its clock is lower than it could be: see `gpu_sensors.THROTTLE_REASONS`."""
    fault: str = ""
    """Why nothing can rely on it, as a part of a sentence; empty if the driver reports nothing."""


class HardwareUsage(BaseModel):
    """The load of a machine, or of the container that limits it, since the previous sample."""

    model_config = ConfigDict(frozen=True)

    host: str
    cores: float
    """The cores available: a container may be limited to a part of one."""
    cpu: float
    """The share of these cores in use."""
    core_loads: tuple[float, ...] = ()
    """The same for each core of the machine; empty in merged samples."""
    celsius: float | None = None
    memory_used_bytes: int
    memory_total_bytes: int
    swap_used_bytes: int = 0
    swap_total_bytes: int = 0
    swapped_per_second: float = 0.0
    """Bytes moved between memory and swap."""
    disk_free_bytes: int
    disk_total_bytes: int
    """Of the disk that holds the studio's home."""
    disk_read_per_second: float | None = None
    disk_written_per_second: float | None = None
    others_cpu: float | None = None
    """The share of the CPU that processes other than the studio's use; None if unknown."""
    busiest_other: str = ""
    """The name of the busiest of them; empty if none is visible."""
    busiest_other_cpu: float = 0.0
    runs: tuple[RunUsage, ...] = ()
    gpus: tuple[GpuUsage, ...] = ()


def merge(samples: Sequence[HardwareUsage]) -> HardwareUsage:
    """Return one sample for all: mean rates and loads, the highest memory and temperature."""
    merged = _merge(samples, _RULES)
    return merged.model_copy(
        update={
            "core_loads": (),
            "runs": _merge_each((s.runs for s in samples), lambda run: run.run_id, _RUN_RULES),
            "gpus": _merge_each((s.gpus for s in samples), lambda gpu: gpu.index, _GPU_RULES),
        }
    )


def _mean(values: Numbers) -> float:
    return sum(values) / len(values)


Rules = dict[str, Callable[[Numbers], float]]

_RULES: Rules = {
    "cpu": _mean,
    "celsius": max,
    "memory_used_bytes": max,
    "swap_used_bytes": max,
    "swapped_per_second": _mean,
    "disk_free_bytes": min,
    "disk_read_per_second": _mean,
    "disk_written_per_second": _mean,
    "others_cpu": _mean,
}
_RUN_RULES: Rules = {"cpu": _mean, "memory_bytes": max}
_GPU_RULES: Rules = {
    "busy": _mean,
    "memory_used_bytes": max,
    "others_memory_bytes": max,
    "celsius": max,
    "watts": _mean,
}
"""How each field is merged; of the others, the newest value stays."""


def _merge(samples: Sequence[T], rules: Rules) -> T:
    values: dict[str, Any] = {}
    for name, rule in rules.items():
        known = [value for sample in samples if (value := getattr(sample, name)) is not None]
        if known:
            values[name] = rule(known)
    return samples[-1].model_copy(update=values)


def _merge_each(
    groups: Iterable[Sequence[T]], key: Callable[[T], int], rules: Rules
) -> tuple[T, ...]:
    by_key: dict[int, list[T]] = {}
    for group in groups:
        for item in group:
            by_key.setdefault(key(item), []).append(item)
    return tuple(_merge(items, rules) for items in by_key.values())
