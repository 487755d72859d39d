"""What a chat waits for before a model can answer: a slot, or a worker."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sqlmodel import Session

from studio.db.tables import Run
from studio.hardware import free_memory
from studio.services.models import loaded_model
from studio.services.queue import concurrent_inference, overview
from studio.services.runs import runs
from studio.services.workers import workers


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotWait:
    """Why no model can answer now."""

    message: str
    """In sentences."""
    run: Run | None = None
    """The run it waits for, if it is only one."""


def find_worker_wait(db: Session) -> SlotWait | None:
    """Return a wait for the worker, or None if one is running."""
    if workers.list_alive(db):
        return None
    if workers.last_exit(db) is None:
        return SlotWait(message="No worker is running, so no model can answer.")
    return SlotWait(message="The worker is restarting. Chat starts when it is back.")


def find_wait(db: Session) -> SlotWait | None:
    """Return what prevents the next answer, or None if a model could start to answer now.

    A loaded model goes on answering until a run needs its slot. Without a free slot, a model may
    answer beside what runs.
    """
    if wait := find_worker_wait(db):
        return wait
    loaded, blocker = loaded_model.current(db), overview.find_slot_blocker(db)
    if blocker is None or (loaded is not None and not loaded.is_leaving):
        return None
    hardware = workers.training_hardware(db)
    if concurrent_inference.weight_budget(db, hardware, free_memory()):
        return None
    live = runs.list_live_progress(db)
    sentences = [_taker_sentence(live, workers.count_slots(db)), _start_sentence(live, blocker)]
    if behind := runs.count_unfinished(db).waiting:
        sentences.append(f"Runs in the queue train first: {behind}.")
    return SlotWait(message=" ".join(sentences), run=live[0] if len(live) == 1 else None)


def _taker_sentence(live: Sequence[Run], slots: int) -> str:
    if not live:
        return "A background task uses the slot for models."
    if len(live) > 1:
        return "Runs are training on all slots."
    if slots > 1:
        return "A run is training on all slots."
    return "A run is training on the only slot."


def _start_sentence(live: Sequence[Run], blocker: overview.Blocker) -> str:
    minutes = math.ceil((blocker.seconds or 0) / 60)
    if len(live) > 1:
        if not minutes:
            return "Chat starts when the first one ends."
        return f"Chat starts when the first one ends, in about {minutes} min."
    if not minutes:
        return "Chat starts when it ends."
    return f"Chat starts when it ends, in about {minutes} min."
