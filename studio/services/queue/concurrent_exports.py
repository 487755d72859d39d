"""Which exports run during training without a slot: those of models small for this machine.

They run on the CPU, so no run waits for a device because of them; they share only memory. Memory is
checked before either starts next to the other. Any other export occupies a slot, like a run.

"""

from dataclasses import dataclass

from sqlmodel import Session, select

from studio.db.states import TaskStatus
from studio.db.tables import Run
from studio.db.tasks import Export
from studio.hardware import Hardware
from studio.services.estimates import host_memory, verdicts
from studio.services.exports import exports
from studio.services.queue import queue
from studio.services.runs import runs

MAX_EXPORTS = 1
"""How many exports run during training at once."""

MAX_TASKS = 2
"""How many tasks that need no device run at once."""

MAX_BY_LANE = {"": MAX_TASKS, "trackers": 8, "uploads": 2}
"""The same by the lane of tasks: those of trackers last as long as their runs, and mostly wait, as
uploads do."""

SMALL_SHARE = 0.25
"""An export is small if it needs at most this share of the machine's memory."""

PROCESS_BYTES = 700_000_000
"""Bytes that an export's process needs besides its model: 600 MB measured, rounded up."""

SCORING_BYTES = 3 * 4 * 2**26
"""Bytes to compute perplexity.

The logits that `studio.training.evaluation.perplexity` computes at once, in the model's dtype,
in float32, and their logarithms.
"""

_WEIGHT_BYTES = 5
"""Bytes per parameter: 4 in float32, plus another copy of the weights an adapter is merged into."""


@dataclass(frozen=True, slots=True)
class RemainingMemory:
    """Memory of the machine that training leaves free."""

    free_bytes: int
    """Bytes. Runs count with all the memory they were estimated to need."""
    unestimated_run: Run | None = None
    """A run without a memory estimate, next to which nothing can be judged."""


def export_bytes(db: Session, export: Export) -> int | None:
    """Return the peak host memory of an export in bytes; None if it is unknown."""
    run = db.get(Run, export.run_id)
    parameters = exports.count_weights(run, "full") if run else 0
    return _WEIGHT_BYTES * parameters + PROCESS_BYTES + SCORING_BYTES if parameters else None


def is_small(db: Session, export: Export, hardware: Hardware) -> bool:
    """Whether an export may run during training, if there is memory for it."""
    needed = export_bytes(db, export)
    return needed is not None and needed <= SMALL_SHARE * hardware.memory_bytes


def takes_slot(db: Session, export: Export, hardware: Hardware) -> bool:
    """Whether a running export occupies a slot that a run could use."""
    return export.gpu is not None or not is_small(db, export, hardware)


def remaining_memory(db: Session, hardware: Hardware, free_bytes: int) -> RemainingMemory:
    """Return the memory that runs and exports leave; `free_bytes` is what is free at the moment."""
    used = 0
    for run in runs.list_live(db):
        needed = run_bytes(run, hardware)
        if needed is None:
            return RemainingMemory(0, run)
        used += needed
    used += sum(export_bytes(db, export) or 0 for export in list_beside_training(db, hardware))
    usable = int(verdicts.TIGHT_SHARE * hardware.memory_bytes)
    return RemainingMemory(min(free_bytes, usable - used))


def run_bytes(run: Run, hardware: Hardware) -> int | None:
    """Return a run's estimated peak host memory in bytes; None without an estimate."""
    estimate = run.estimate.get("memory")
    if estimate is None:
        return None
    if hardware.device == "cpu":
        return int(estimate["total"])
    return int(estimate["parts"].get("weights", 0)) + host_memory.CUDA_HOST_BYTES


def list_beside_training(db: Session, hardware: Hardware) -> list[Export]:
    """Return the running exports that occupy no slot."""
    running = db.exec(select(Export).where(Export.status == TaskStatus.RUNNING)).all()
    return [export for export in running if not takes_slot(db, export, hardware)]


def fits_in_memory(db: Session, export: Export, hardware: Hardware, free_bytes: int) -> bool:
    """Whether there is memory for an export next to the live runs, if there are any."""
    needed = export_bytes(db, export)
    if not runs.list_live(db):
        return True
    return needed is not None and needed <= remaining_memory(db, hardware, free_bytes).free_bytes


def blocking_export(db: Session, hardware: Hardware) -> Export | None:
    """Return the export the next run waits for, because both may not fit into memory."""
    running = list_beside_training(db, hardware)
    run = queue.next_run(db) if running else None
    if run is None:
        return None
    needed = run_bytes(run, hardware)
    # Currently free memory says little: other runs may have ended and be about to release theirs.
    available = remaining_memory(db, hardware, hardware.memory_bytes).free_bytes
    return None if needed is not None and needed <= available else running[0]
