"""Whether a model may answer while all slots are taken: as far as memory goes."""

import pytest
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.hardware import Hardware
from studio.services.estimates import verdicts
from studio.services.queue import concurrent_inference
from studio.services.queue.concurrent_inference import PROCESS_BYTES, weight_budget
from tests.support.factories import make_running

GB = 10**9
MACHINE = Hardware(processor="A processor", cores=2, memory_bytes=32 * GB, native_bf16=True)


def budget(engine: Engine, estimate: dict[str, object], free: int) -> int:
    with unit_of_work(engine) as db:
        make_running(db).estimate = estimate
        db.flush()
        return weight_budget(db, MACHINE, free)


@pytest.mark.parametrize(
    ("run_bytes", "free", "expected"),
    [
        (4 * GB, 20 * GB, 20 * GB - PROCESS_BYTES),
        (20 * GB, 20 * GB, int(verdicts.TIGHT_SHARE * 32 * GB) - 20 * GB - PROCESS_BYTES),
        (4 * GB, PROCESS_BYTES, 0),
        (31 * GB, 20 * GB, 0),
    ],
    ids=["free memory", "what the run will need", "too little is free", "run takes all"],
)
def test_memory_left_for_weights(engine: Engine, run_bytes: int, free: int, expected: int) -> None:
    assert budget(engine, {"memory": {"total": run_bytes, "parts": {}}}, free) == expected


def test_nothing_is_left_beside_a_run_of_unknown_size(engine: Engine) -> None:
    assert budget(engine, {}, 20 * GB) == 0


def test_little_memory_is_not_worth_a_process(engine: Engine) -> None:
    free = PROCESS_BYTES + concurrent_inference.MIN_WEIGHT_BYTES - 1

    assert budget(engine, {"memory": {"total": GB, "parts": {}}}, free) == 0
