"""Whether a model may answer while runs and tasks take all slots: if memory allows both.

It answers on the CPU then, so no run shares its device with it.
"""

from sqlmodel import Session

from studio.hardware import Hardware
from studio.services.queue import concurrent_exports

PROCESS_BYTES = 800_000_000
"""Bytes that the inference service needs besides its model: 640 MB measured, rounded up."""

MIN_WEIGHT_BYTES = 200_000_000
"""Less memory for weights is not worth starting the service."""


def weight_budget(db: Session, hardware: Hardware, free_bytes: int) -> int:
    """Return how many bytes the weights of a model may take beside what runs; 0 for none at all."""
    left = concurrent_exports.remaining_memory(db, hardware, free_bytes).free_bytes
    budget = left - PROCESS_BYTES
    return budget if budget >= MIN_WEIGHT_BYTES else 0
