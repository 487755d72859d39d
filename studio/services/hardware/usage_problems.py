"""What is wrong with a machine's load, in sentences, on the average of half a minute."""

from collections.abc import Iterator, Sequence

from studio.hardware_usage.usage import GpuUsage, HardwareUsage, merge

RECENT_SAMPLES = 6
MIN_SAMPLES = 3
"""A peak of one sample is no problem yet."""

MEMORY_SHARE = 0.92
GPU_MEMORY_SHARE = 0.97
"""Training fills a GPU's memory on purpose, and fails when it is full, not when it is almost."""

OTHERS_CPU_SHARE = 0.25
NAMED_SHARE = 0.5
"""A process is named if it uses at least this much of what all others use."""

SWAPPING_BYTES = 10e6
"""Per second: enough to notice."""

DISK_FREE_BYTES = 2e9
GPU_OTHERS_BYTES = 1e9
GPU_CELSIUS = 90.0
CPU_CELSIUS = 95.0


def list_problems(samples: Sequence[HardwareUsage]) -> list[str]:
    """Describe what slows training down or may end it, from the newest samples, oldest first."""
    recent = samples[-RECENT_SAMPLES:]
    if len(recent) < MIN_SAMPLES:
        return []
    return [*_machine_problems(merge(recent)), *_gpu_problems(recent)]


def _machine_problems(usage: HardwareUsage) -> Iterator[str]:
    filled = usage.memory_used_bytes / usage.memory_total_bytes
    if filled >= MEMORY_SHARE:
        yield f"Memory is almost full: {_percent(filled)}."
    if usage.swapped_per_second >= SWAPPING_BYTES:
        yield "Memory is being swapped to disk, which slows everything down."
    if usage.disk_free_bytes < DISK_FREE_BYTES:
        yield f"The disk is almost full: {_size(usage.disk_free_bytes)} left."
    if usage.celsius is not None and usage.celsius >= CPU_CELSIUS:
        yield f"The CPU is hot: {usage.celsius:.0f} °C."
    yield from _other_programs(usage)


def _other_programs(usage: HardwareUsage) -> Iterator[str]:
    others = usage.others_cpu or 0.0
    if others < OTHERS_CPU_SHARE:
        return
    if usage.busiest_other and usage.busiest_other_cpu >= NAMED_SHARE * others:
        name, share = usage.busiest_other, min(others, usage.busiest_other_cpu)
        yield f"Another program, {name}, uses {_percent(share)} of the CPU."
    else:
        yield f"Other programs use {_percent(others)} of the CPU."


def _gpu_problems(recent: Sequence[HardwareUsage]) -> Iterator[str]:
    for gpu in merge(recent).gpus:
        samples = [g for usage in recent for g in usage.gpus if g.index == gpu.index]
        if fault := samples[-1].fault:
            yield f"GPU {gpu.index} is not used: {fault}."
        for reason in samples[-1].throttled_by:
            if sum(reason in sample.throttled_by for sample in samples) * 2 > len(samples):
                yield f"GPU {gpu.index} runs slower than it could. Reason: {reason}."
        yield from _gpu_state(gpu)


def _gpu_state(gpu: GpuUsage) -> Iterator[str]:
    if gpu.memory_used_bytes and gpu.memory_total_bytes:
        filled = gpu.memory_used_bytes / gpu.memory_total_bytes
        if filled >= GPU_MEMORY_SHARE:
            yield f"The memory of GPU {gpu.index} is almost full: {_percent(filled)}."
    if (gpu.others_memory_bytes or 0) >= GPU_OTHERS_BYTES:
        taken = _size(gpu.others_memory_bytes or 0)
        yield f"Other programs use {taken} of the memory of GPU {gpu.index}."
    if gpu.celsius is not None and gpu.celsius >= GPU_CELSIUS:
        yield f"GPU {gpu.index} is hot: {gpu.celsius:.0f} °C."


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _size(count: float) -> str:
    return f"{count / 1e9:.3g} GB"
