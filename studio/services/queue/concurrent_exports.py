"""Which exports run beside training, without a slot: those whose model is small on this machine.

They are made on the processor, so no run waits for their device; what the two share is memory.
It is judged before either starts beside the other. Any other export has a slot, as a run has.
"""

from dataclasses import dataclass

from sqlmodel import Session, select

from studio.db.states import TaskStatus
from studio.db.tables import Run
from studio.db.tasks import Export
from studio.hardware import Hardware
from studio.services.estimates import memory_fit
from studio.services.exports import export_formats
from studio.services.queue import queue
from studio.services.runs import runs

MAX_EXPORTS = 1
"""How many exports are made beside training at once."""

MAX_TASKS = 2
"""How many tasks that need no device are done at once."""

SMALL_SHARE = 0.25
"""An export is small if it takes at most this share of the machine's memory."""

PROCESS_BYTES = 700_000_000
"""Bytes that an export's process holds beside its model: 600 MB measured, rounded up."""

SCORING_BYTES = 3 * 4 * 2**26
"""Bytes to score answers with.

The logits that `studio.training.evaluation.perplexity` computes at once, as the model writes them,
in float32, and their logarithms."""

_WEIGHT_BYTES = 5
"""For each parameter: 4 in float32, and the weights that an adapter is folded into once more."""


@dataclass(frozen=True, slots=True)
class RemainingMemory:
    """Memory of the machine that training leaves."""

    free_bytes: int
    """Bytes. Runs are counted with all that they were estimated to hold."""
    unestimated_run: Run | None = None
    """A run whose need is not known, so that nothing can be judged beside it."""


def export_bytes(db: Session, export: Export) -> int | None:
    """Return how many bytes of the machine's memory an export takes at most, if that is known."""
    run = db.get(Run, export.run_id)
    parameters = export_formats.count_weights(run, "full") if run else 0
    return _WEIGHT_BYTES * parameters + PROCESS_BYTES + SCORING_BYTES if parameters else None


def is_small(db: Session, export: Export, hardware: Hardware) -> bool:
    """Whether an export may be made beside training, if there is memory for it."""
    needed = export_bytes(db, export)
    return needed is not None and needed <= SMALL_SHARE * hardware.memory_bytes


def takes_slot(db: Session, export: Export, hardware: Hardware) -> bool:
    """Whether an export that is being made has a slot that a run could have."""
    return export.gpu is not None or not is_small(db, export, hardware)


def remaining_memory(db: Session, hardware: Hardware, free_bytes: int) -> RemainingMemory:
    """Return the memory that runs and exports leave; `free_bytes` is what is free right now."""
    held = 0
    for run in runs.list_live(db):
        needed = run_bytes(run, hardware)
        if needed is None:
            return RemainingMemory(0, run)
        held += needed
    held += sum(export_bytes(db, export) or 0 for export in list_beside_training(db, hardware))
    return RemainingMemory(
        min(free_bytes, int(memory_fit.TIGHT_SHARE * hardware.memory_bytes) - held)
    )


def run_bytes(run: Run, hardware: Hardware) -> int | None:
    """Return how many bytes of the machine's memory a run was estimated to hold at most."""
    told = run.estimate.get("memory")
    if told is None:
        return None
    if hardware.device == "cpu":
        return int(told["total"])
    return int(told["parts"].get("weights", 0)) + memory_fit.CUDA_HOST_BYTES


def list_beside_training(db: Session, hardware: Hardware) -> list[Export]:
    """Return the exports that are being made without a slot."""
    going = db.exec(select(Export).where(Export.status == TaskStatus.RUNNING)).all()
    return [export for export in going if not takes_slot(db, export, hardware)]


def fits_in_memory(db: Session, export: Export, hardware: Hardware, free_bytes: int) -> bool:
    """Whether there is memory to make an export beside what trains, if anything does."""
    needed = export_bytes(db, export)
    if not runs.list_live(db):
        return True
    return needed is not None and needed <= remaining_memory(db, hardware, free_bytes).free_bytes


def blocking_export(db: Session, hardware: Hardware) -> Export | None:
    """Return the export that the next run waits for, since both may not fit into memory."""
    first, going = queue.next_run(db), list_beside_training(db, hardware)
    if first is None or not going:
        return None
    needed = run_bytes(first, hardware)
    # What is free right now says little: other runs may have ended, and give theirs back.
    left = remaining_memory(db, hardware, hardware.memory_bytes).free_bytes
    return None if needed is not None and needed <= left else going[0]
