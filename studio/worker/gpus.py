"""The GPUs of a worker's machine: who uses which, and which one comes next."""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from studio.gpu_detection import Gpu
from studio.hardware import Hardware
from studio.hardware_usage.usage import HardwareUsage
from studio.services.queue.gpu_pools import GpuPools

log = logging.getLogger(__name__)


@dataclass(slots=True)
class MachineGpus:
    """Gives the GPUs out. With more slots than GPUs, as many share each as it takes."""

    hardware: Hardware
    _reported: Mapping[int, str] = field(default_factory=dict)

    @property
    def all(self) -> tuple[Gpu, ...]:
        """The GPUs that anything may use; none where runs train on the processor."""
        return self.hardware.gpus if self.hardware.device == "cuda" else ()

    def take_reports(self, usage: HardwareUsage) -> None:
        """Note the GPUs that the driver reports as faulty, until it no longer does."""
        self._reported = {gpu.index: gpu.fault for gpu in usage.gpus if gpu.fault}

    def keep_from_work(self, quarantined: Mapping[str, str]) -> None:
        """Keep everything off GPUs in quarantine, by their names for CUDA, and faulty ones."""
        faults: dict[int, str] = {}
        for gpu in self.all:
            whole = gpu.index if gpu.part_of is None else gpu.part_of
            why = self._reported.get(whole) or quarantined.get(gpu.cuda_name)
            if why:
                faults[gpu.index] = why
        if faults != self.hardware.gpu_faults:
            log.warning("gpu_faults", extra={"faults": faults})
            self.hardware = replace(self.hardware, gpu_faults=faults)

    def hardware_of(self, index: int | None) -> Hardware:
        """Return the machine as something sees it that was given a GPU."""
        given = tuple(gpu for gpu in self.all if gpu.index == index)
        return replace(self.hardware, gpus=given) if given else self.hardware

    def pools(self, used: Iterable[int | None], slots: int) -> GpuPools | None:
        """Return what runs can get, beside what is in use; None where they train without a GPU."""
        if not self.all:
            return None
        free = [gpu.index for gpu in self._list_free(used, slots)]
        return GpuPools(hardware=self.hardware, free=free)

    def pick(self, used: Iterable[int | None], slots: int) -> int | None:
        """Return the GPU for work of any kind; None if none is free."""
        return next((gpu.index for gpu in self._list_free(used, slots)), None)

    def is_missing(self, used: Iterable[int | None], slots: int) -> bool:
        """Whether work has to wait for a GPU: none is free that works, on a machine that has any.

        Without a GPU of its own, a process sees all of them, the faulty ones too.
        """
        return bool(self.all) and self.pick(used, slots) is None

    def _list_free(self, used: Iterable[int | None], slots: int) -> list[Gpu]:
        """Return the GPUs that can take more work, the least used first."""
        if not self.all:
            return []
        users, shares = Counter(used), math.ceil(slots / len(self.all))
        free = [gpu for gpu in self.hardware.working_gpus if users[gpu.index] < max(1, shares)]
        return sorted(free, key=lambda gpu: users[gpu.index])
