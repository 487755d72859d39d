"""Which GPU a run gets on a machine with several kinds, and who passes whom."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from sqlmodel import Session

from studio.db.states import RunStatus
from studio.db.tables import Run, Worker
from studio.gpu_detection import Gpu
from studio.hardware import Hardware
from studio.services.queue import overview, queue
from studio.services.queue.gpu_pools import GpuPools
from studio.services.runs import states
from studio.services.workers import workers
from tests.support.factories import MACHINES, make_run

GB = 2**30
A100 = Gpu(index=0, name="A100", memory_bytes=80 * GB, capability=(8, 0), uuid="GPU-0")
T4 = Gpu(index=1, name="Tesla T4", memory_bytes=16 * GB, capability=(7, 5), uuid="GPU-1")
L4 = Gpu(index=2, name="L4", memory_bytes=24 * GB, capability=(8, 9), uuid="GPU-2")
MACHINE = replace(MACHINES["t4"], gpus=(A100, T4, L4))


def pools(*free: int, machine: Hardware = MACHINE) -> GpuPools:
    return GpuPools(hardware=machine, free=free)


def sized(db: Session, gibibytes: int | None, precision: str = "fp32") -> Run:
    run = make_run(db, precision=precision)
    run.estimate = {"memory": {"total": gibibytes * GB}} if gibibytes is not None else {}
    db.flush()
    return run


@pytest.mark.parametrize(
    ("gibibytes", "precision", "free", "expected"),
    [
        (1, "fp32", (0, 1, 2), "Tesla T4"),
        (1, "fp32", (2, 0), "L4"),
        (1, "bf16", (0, 1, 2), "L4"),
        (1, "bf16", (1,), None),
        (15, "fp32", (0, 1, 2), "L4"),
        (30, "fp32", (0, 1, 2), "A100"),
        (30, "fp32", (1, 2), None),
        (900, "fp32", (0, 1, 2), "A100"),
        (None, "fp32", (0, 1, 2), "A100"),
        (None, "fp32", (1, 2), "L4"),
    ],
)
def test_run_gets_the_smallest_gpu_that_can_train_it(
    gibibytes: int | None,
    precision: str,
    free: Sequence[int],
    expected: str | None,
    db: Session,
) -> None:
    gpu = pools(*free).find_free(sized(db, gibibytes, precision))

    assert (gpu.name if gpu else None) == expected


def test_run_that_no_kind_can_compute_starts_to_fail_with_the_reason(db: Session) -> None:
    old = replace(MACHINE, gpus=(replace(T4, capability=(5, 0)),))

    assert pools(1, machine=old).find_free(sized(db, 1, "bf16")) == old.gpus[0]


def test_of_one_kind_the_least_used_comes_first(db: Session) -> None:
    two = replace(MACHINE, gpus=(T4, replace(T4, index=4, uuid="GPU-4")))

    gpu = pools(4, 1, machine=two).find_free(sized(db, 1))
    assert gpu is not None
    assert gpu.index == 4


def test_runs_of_another_kind_pass_one_that_waits(db: Session) -> None:
    large, second_large, small = sized(db, 60), sized(db, 60), sized(db, 1)

    first = queue.claim(db, "w", 3, pools=pools(0, 1, 2))
    second = queue.claim(db, "w", 3, pools=pools(1, 2))
    third = queue.claim(db, "w", 3, pools=pools(2))
    assert (first, second, third) == (large, small, None)
    assert (large.gpu, small.gpu, second_large.gpu) == (0, 1, None)
    assert queue.claim(db, "w", 3, pools=pools(0, 2)) is second_large


def test_a_run_that_needs_more_slots_still_blocks_all_behind_it(db: Session) -> None:
    sized(db, 60).slots = 3
    sized(db, 1)
    db.flush()
    busy = sized(db, 1)
    queue.set_priority(db, busy.id or 0, 5)

    assert queue.claim(db, "w", 3, pools=pools(0, 1, 2)) is busy
    assert queue.claim(db, "w", 3, pools=pools(0, 2)) is None


def test_no_run_is_passed_by_one_of_its_own_kind(db: Session) -> None:
    sizes = {sized(db, size).id: size for size in (1, 60, 60, 1, 20, 60, 1, 60, 20)}
    free, live, started = [0, 1, 2], list[Run](), list[Run]()
    while len(started) < len(sizes) or live:
        while run := queue.claim(db, "w", 3, pools=pools(*free)):
            free.remove(run.gpu or 0)
            live.append(run)
            started.append(run)
        ended = live.pop(0)
        states.move(db, ended, RunStatus.FAILED)
        free.append(ended.gpu or 0)

    for size in (1, 20, 60):
        order = [run.id or 0 for run in started if sizes[run.id] == size]
        assert order == sorted(order)


def test_faulty_gpus_are_given_to_nobody(db: Session) -> None:
    faulty = replace(MACHINE, gpu_faults={1: "it no longer answers"})
    run = sized(db, 1)

    gpu = pools(0, 1, 2, machine=faulty).find_free(run)
    assert gpu == L4
    nothing = replace(MACHINE, gpu_faults=dict.fromkeys(range(3), "it must be reset"))
    assert queue.claim(db, "w", 3, pools=pools(0, 1, 2, machine=nothing)) is None


def test_recipes_are_judged_by_the_best_kind_that_works() -> None:
    assert [one.gpus[0].name for one in MACHINE.kinds] == ["A100", "L4", "Tesla T4"]
    assert (MACHINE.capability, MACHINE.usable_memory_bytes) == ((8, 0), 80 * GB)
    assert MACHINE.device_name == "A100"
    faulty = replace(MACHINE, gpu_faults={0: "it must be reset"})
    assert (faulty.device_name, faulty.usable_memory_bytes) == ("L4", 24 * GB)


@pytest.mark.parametrize(
    ("lent", "free", "expected"),
    [({0}, (1, 2), True), ({1}, (2,), False), ({0}, (0, 1, 2), False), ({None}, (1, 2), False)],
)
def test_only_a_gpu_that_the_next_run_can_use_is_asked_back(
    lent: set[int | None], free: Sequence[int], db: Session, *, expected: bool
) -> None:
    sized(db, 60)

    assert queue.needs_gpu_of(db, pools(*free), lent) is expected


def test_waiting_run_names_the_gpu_it_waits_for(db: Session) -> None:
    facts = workers.HARDWARE_ADAPTER.dump_python(MACHINE, mode="json")
    workers.heartbeat(db, Worker(name="w", pid=1, slots=3, hardware=facts))
    first, second = sized(db, 60), sized(db, 60)
    assert queue.claim(db, "w", 3, pools=pools(0, 1, 2)) is first
    small = sized(db, 1)

    waits = {wait.run.id: wait.reason for wait in overview.estimate_waits(db)}
    assert waits == {
        second.id: "waiting for a GPU that can train it: A100",
        small.id: overview.SOON,
    }


def test_waiting_run_says_that_no_gpu_works(db: Session) -> None:
    machine = replace(MACHINES["t4"], gpu_faults={0: "it no longer answers"})
    facts = workers.HARDWARE_ADAPTER.dump_python(machine, mode="json")
    workers.heartbeat(db, Worker(name="w", pid=1, slots=1, hardware=facts))
    sized(db, 1)

    (wait,) = overview.estimate_waits(db)
    assert wait.reason == "waiting for a GPU that works"
