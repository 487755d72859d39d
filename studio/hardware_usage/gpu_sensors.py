"""What NVIDIA's driver reports on its GPUs, through its library NVML, which comes with the driver.

No Python package is needed. Without a driver there are no GPUs; a value that a GPU does not
report is None.
"""

import ctypes
from collections.abc import Callable, Collection, Mapping
from ctypes import byref, c_char, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass
from typing import Any

from studio.hardware_usage.usage import GpuUsage

LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0
_NAME_BYTES = 96
_CORE_SENSOR = 0
_MAX_PROCESSES = 128
_LOST = {15: "it no longer answers", 16: "it must be reset"}
"""NVML's errors of a GPU that is gone: GPU_IS_LOST and RESET_REQUIRED."""

_UNREPAIRED = "its memory is damaged and could not be repaired"
_TO_REPAIR = "its memory is damaged; a reset or a restart of the machine repairs it"

_UNKNOWN_BYTES = 2**64 - 1
"""A process's memory, where the driver does not report it."""

THROTTLE_REASONS: Mapping[int, str] = {
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x20: "high temperature",
    0x40: "high temperature",
    0x80: "power supply",
}
"""The bits of NVML's clock event reasons that slow work down; an idle GPU is not throttled."""


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", c_uint), ("memory", c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", c_uint),
        ("used", c_ulonglong),
        ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    ]


@dataclass(frozen=True, slots=True)
class GpuSensors:
    """The GPUs of this machine, in the driver's order."""

    library: Any
    devices: tuple[c_void_p, ...]

    @classmethod
    def open(cls, load: Callable[[str], Any] = ctypes.CDLL) -> "GpuSensors":
        """Load the driver's library; without one, there are no GPUs."""
        try:
            library = load(LIBRARY)
        except OSError:
            return cls(None, ())
        count = c_uint()
        if library.nvmlInit_v2() or library.nvmlDeviceGetCount_v2(byref(count)):
            return cls(None, ())
        found = [c_void_p() for _ in range(count.value)]
        ends = [library.nvmlDeviceGetHandleByIndex_v2(i, byref(d)) for i, d in enumerate(found)]
        return cls(library, tuple(found) if not any(ends) else ())

    def read(self, own_pids: Collection[int]) -> tuple[GpuUsage, ...]:
        """Read all sensors; `own_pids` are the studio's processes."""
        return tuple(self._gpu(index, own_pids) for index in range(len(self.devices)))

    def _gpu(self, index: int, own_pids: Collection[int]) -> GpuUsage:
        device = self.devices[index]
        use = self._value("nvmlDeviceGetUtilizationRates", device, _Utilization())
        memory = self._value("nvmlDeviceGetMemoryInfo", device, _Memory())
        return GpuUsage(
            index=index,
            name=self._name(device),
            busy=use.gpu / 100 if use else None,
            memory_used_bytes=memory.used if memory else None,
            memory_total_bytes=memory.total if memory else None,
            others_memory_bytes=self._others_memory(device, own_pids),
            celsius=self._temperature(device),
            watts=self._watts("nvmlDeviceGetPowerUsage", device),
            watts_limit=self._watts("nvmlDeviceGetEnforcedPowerLimit", device),
            throttled_by=self._throttle_reasons(device),
            fault=self._fault(device),
        )

    def _fault(self, device: c_void_p) -> str:
        """Return what the driver says of a GPU that gives wrong results or none.

        Newer GPUs replace damaged rows of their memory, older ones retire pages; both need a reset:
        https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/
        """
        memory = _Memory()
        if lost := _LOST.get(self.library.nvmlDeviceGetMemoryInfo(device, byref(memory))):
            return lost
        rows = [c_uint() for _ in range(4)]
        remapped = getattr(self.library, "nvmlDeviceGetRemappedRows", None)
        if remapped and remapped(device, *(byref(row) for row in rows)) == _SUCCESS:
            _corrected, _uncorrected, is_pending, has_failed = (bool(row.value) for row in rows)
            return _UNREPAIRED if has_failed else _TO_REPAIR if is_pending else ""
        pending = self._value("nvmlDeviceGetRetiredPagesPendingStatus", device, c_uint())
        return _TO_REPAIR if pending and pending.value else ""

    def _value(self, function: str, device: c_void_p, value: Any) -> Any:  # noqa: ANN401 -- any ctypes value
        """Return the value that a function writes, or None if the GPU does not support it."""
        call = getattr(self.library, function, None)
        return value if call and call(device, byref(value)) == _SUCCESS else None

    def _name(self, device: c_void_p) -> str:
        name = (c_char * _NAME_BYTES)()
        end = self.library.nvmlDeviceGetName(device, name, c_uint(_NAME_BYTES))
        return name.value.decode() if end == _SUCCESS else "GPU"

    def _temperature(self, device: c_void_p) -> float | None:
        celsius = c_uint()
        end = self.library.nvmlDeviceGetTemperature(device, c_uint(_CORE_SENSOR), byref(celsius))
        return float(celsius.value) if end == _SUCCESS else None

    def _watts(self, function: str, device: c_void_p) -> float | None:
        milliwatts = self._value(function, device, c_uint())
        return milliwatts.value / 1000 if milliwatts else None

    def _throttle_reasons(self, device: c_void_p) -> tuple[str, ...]:
        # Its older name, which every driver has.
        bits = self._value("nvmlDeviceGetCurrentClocksThrottleReasons", device, c_ulonglong())
        if not bits:
            return ()
        return tuple(
            dict.fromkeys(name for bit, name in THROTTLE_REASONS.items() if bits.value & bit)
        )

    def _others_memory(self, device: c_void_p, own_pids: Collection[int]) -> int | None:
        """Return the memory of other processes, if the driver's pids are those of this machine.

        In a container they are those of the host. They are known to match where one is the
        studio's own.
        """
        count, processes = c_uint(_MAX_PROCESSES), (_Process * _MAX_PROCESSES)()
        function = getattr(self.library, "nvmlDeviceGetComputeRunningProcesses_v3", None)
        if function is None or function(device, byref(count), processes) != _SUCCESS:
            return None
        listed = [p for p in processes[: count.value] if p.used != _UNKNOWN_BYTES]
        others = [p.used for p in listed if p.pid not in own_pids]
        return sum(others) if len(others) < len(listed) else None
