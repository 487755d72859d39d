"""Which GPU a run gets: the smallest free one of a kind that can train it.

A kind can train a run if it supports the run's number formats and has the memory that the run was
estimated to need. A run without such a GPU waits, and those behind it that need another kind pass.
None of them can take a GPU from it: whatever it waits for is in use.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from studio.db.tables import Run
from studio.gpu_detection import Gpu, GpuKind
from studio.hardware import Hardware
from studio.recipe.precision import PRECISIONS
from studio.services.estimates import verdicts


@dataclass(frozen=True, kw_only=True)
class GpuPools:
    """The GPUs of a machine that work, by kind, and which of them are free."""

    hardware: Hardware
    free: Sequence[int] = ()
    """Indexes of the GPUs that runs may take now, the least used first."""

    @cached_property
    def _machines(self) -> Mapping[GpuKind, Hardware]:
        """By kind, the best first: the machine with the GPUs of that kind alone."""
        if not self.hardware.working_gpus:
            return {}
        return {one.gpus[0].kind: one for one in self.hardware.kinds}

    @property
    def kinds(self) -> frozenset[GpuKind]:
        """The kinds of which any GPU works."""
        return frozenset(self._machines)

    def choose_kinds(self, run: Run) -> tuple[GpuKind, ...]:
        """Return the kinds that can train a run, the smallest first.

        Without an estimate, the best come first. If no kind has the memory, only the largest is
        left; if none supports the formats, all are: the run fails with the reason when it starts.
        """
        able = [kind for kind, machine in self._machines.items() if _can_compute(run, machine)]
        if not able:
            return tuple(self._machines)
        needed = _needed_bytes(run)
        if needed is None:
            return tuple(able)
        roomy = [kind for kind in able if needed <= verdicts.TIGHT_SHARE * kind.memory_bytes]
        largest = max(able, key=lambda kind: kind.memory_bytes)
        return tuple(sorted(roomy, key=lambda kind: kind.merit)) or (largest,)

    def find_free(self, run: Run, avoided: Collection[str] = ()) -> Gpu | None:
        """Return the GPU that a run would get now; None if it has to wait.

        It waits for another rather than take one that is `avoided`, by its name for CUDA, unless
        there is no other.
        """
        kinds = [self._machines[kind].working_gpus for kind in self.choose_kinds(run)]
        all_avoided = all(gpu.cuda_name in avoided for gpus in kinds for gpu in gpus)
        for gpus in kinds:
            by_index = {gpu.index: gpu for gpu in gpus}
            free = (by_index[index] for index in self.free if index in by_index)
            if found := next((g for g in free if all_avoided or g.cuda_name not in avoided), None):
                return found
        return None


def _can_compute(run: Run, machine: Hardware) -> bool:
    quantised = run.recipe.adapter.quantised
    rows = (PRECISIONS[run.recipe.precision], *((quantised,) if quantised else ()))
    return not any(row.unsupported_reason(machine) for row in rows)


def _needed_bytes(run: Run) -> int | None:
    """Return the bytes of GPU memory that a run was estimated to need; None without an estimate."""
    estimate = run.estimate.get("memory")
    return None if estimate is None else int(estimate["total"])
