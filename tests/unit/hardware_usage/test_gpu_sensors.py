"""The driver's library, played by an object with the same functions."""

# ruff: noqa: N802, ANN401 -- NVML's names, and pointers

from collections.abc import Callable
from ctypes import c_uint
from typing import Any

import pytest

from studio.hardware_usage.gpu_sensors import GpuSensors

NOT_SUPPORTED = 3
Write = Callable[..., int | None]


class Driver:
    """NVML with one GPU; what it does not know is not supported."""

    def __init__(self, **writes: Write) -> None:
        self.writes = {f"nvmlDevice{name}": write for name, write in writes.items()}

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = 1
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, _index: int, _device: Any) -> int:
        return 0

    def nvmlDeviceGetName(self, _device: Any, name: Any, _size: c_uint) -> int:
        name.value = b"NVIDIA H100"
        return 0

    def nvmlDeviceGetTemperature(self, _device: Any, _kind: c_uint, celsius: Any) -> int:
        celsius._obj.value = 71
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(
        self,
        _device: Any,
        count: Any,
        processes: Any,
    ) -> int:
        for place, (pid, used) in enumerate([(10, 5_000), (11, 700)]):
            processes[place].pid, processes[place].used = pid, used
        count._obj.value = 2
        return 0

    def __getattr__(self, name: str) -> Callable[[Any, Any], int]:
        def call(_device: Any, *pointers: Any) -> int:
            if name not in self.writes:
                return NOT_SUPPORTED
            end = self.writes[name](*(pointer._obj for pointer in pointers))
            return int(end or 0)

        return call


def set_use(use: Any) -> None:
    use.gpu = 93


def set_memory(memory: Any) -> None:
    memory.used, memory.total = 40, 80


def value(number: int) -> Write:
    return lambda place: setattr(place, "value", number)


def opened(**writes: Write) -> GpuSensors:
    return GpuSensors.open(lambda _name: Driver(**writes))


def test_all_sensors_are_read() -> None:
    sensors = opened(
        GetUtilizationRates=set_use,
        GetMemoryInfo=set_memory,
        GetPowerUsage=value(310_500),
        GetEnforcedPowerLimit=value(700_000),
        GetCurrentClocksThrottleReasons=value(0x04 | 0x20 | 0x40),
    )

    (gpu,) = sensors.read([])

    assert (gpu.name, gpu.busy, gpu.memory_used_bytes, gpu.memory_total_bytes) == (
        "NVIDIA H100",
        0.93,
        40,
        80,
    )
    assert (gpu.celsius, gpu.watts, gpu.watts_limit) == (71.0, 310.5, 700.0)
    assert gpu.throttled_by == ("power limit", "high temperature")


def test_sensors_that_are_not_supported_are_missing() -> None:
    (gpu,) = opened().read([])

    assert (gpu.busy, gpu.memory_used_bytes, gpu.watts, gpu.throttled_by) == (None, None, None, ())


def test_idle_gpu_is_not_throttled() -> None:
    (gpu,) = opened(GetCurrentClocksThrottleReasons=value(0x01)).read([])

    assert gpu.throttled_by == ()


@pytest.mark.parametrize(("own_pids", "others"), [([10], 700), ([10, 11], 0), ([99], None)])
def test_memory_of_others_is_known_where_the_driver_names_an_own_process(
    own_pids: list[int], others: int | None
) -> None:
    (gpu,) = opened().read(own_pids)

    assert gpu.others_memory_bytes == others


def test_machine_without_a_driver_has_no_gpus() -> None:
    def missing(name: str) -> object:
        raise OSError(name)

    assert GpuSensors.open(missing).read([]) == ()


def rows(*, is_pending: bool = False, has_failed: bool = False) -> Write:
    def write(_corrected: Any, _uncorrected: Any, pending: Any, failed: Any) -> None:
        pending.value, failed.value = int(is_pending), int(has_failed)

    return write


@pytest.mark.parametrize(
    ("writes", "fault"),
    [
        ({}, ""),
        ({"GetRemappedRows": rows()}, ""),
        ({"GetRemappedRows": rows(is_pending=True)}, "a reset or a restart"),
        ({"GetRemappedRows": rows(is_pending=True, has_failed=True)}, "could not be repaired"),
        ({"GetRetiredPagesPendingStatus": value(0)}, ""),
        ({"GetRetiredPagesPendingStatus": value(1)}, "a reset or a restart"),
        ({"GetMemoryInfo": lambda _memory: 15}, "it no longer answers"),
        ({"GetMemoryInfo": lambda _memory: 16}, "it must be reset"),
        ({"GetMemoryInfo": lambda _memory: 999}, ""),
    ],
)
def test_faults_that_the_driver_reports(writes: dict[str, Write], fault: str) -> None:
    (gpu,) = opened(**writes).read([])

    assert bool(gpu.fault) == bool(fault)
    assert fault in gpu.fault
