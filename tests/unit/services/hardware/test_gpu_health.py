"""A run whose GPU fails starts again elsewhere; a GPU that fails runs is kept from them."""

from dataclasses import replace

import pytest
from sqlmodel import Session

from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.errors import NotFoundError
from studio.gpu_detection import Gpu
from studio.protocols.events import Failed, Finished, Started
from studio.services.hardware import gpu_health
from studio.services.queue import queue
from studio.services.queue.gpu_pools import GpuPools
from studio.services.runs import attempts
from studio.services.tasks.exit_diagnosis import ProcessExit
from tests.support.factories import MACHINES, make_run

BAD = Gpu(index=0, name="T4", memory_bytes=2**34, capability=(7, 5), uuid="GPU-bad")
GOOD = replace(BAD, index=1, uuid="GPU-good")
MACHINE = replace(MACHINES["t4"], gpus=(BAD, GOOD))
ERROR = Failed(code="gpu_failed", message="CUDA error: unspecified launch failure")


def claim(db: Session, *free: int) -> Run:
    run = queue.claim(db, "w", 2, pools=GpuPools(hardware=MACHINE, free=free))
    assert run is not None
    return run


def end(db: Session, run: Run, event: Failed | Finished) -> None:
    attempts.apply_events(db, run, [Started(total_steps=10, resolved={}), event], 10)
    attempts.close_exited(db, run, ProcessExit(exit_code=int(isinstance(event, Failed))))
    db.flush()


def fail_then_succeed(db: Session) -> None:
    """Have a run fail on the bad GPU and succeed on the good one."""
    make_run(db, precision="fp32")
    end(db, claim(db, 0, 1), ERROR)
    end(db, claim(db, 0, 1), Finished(metrics={}))


def test_run_starts_again_on_another_gpu(db: Session) -> None:
    make_run(db, precision="fp32")
    run = claim(db, 0, 1)
    assert run.gpu == 0
    end(db, run, ERROR)

    assert (run.status, run.resumes, run.error_code) == (RunStatus.QUEUED, True, "")
    assert queue.claim(db, "w", 2, pools=GpuPools(hardware=MACHINE, free=(0,))) is None
    assert claim(db, 0, 1).gpu == 1
    tries = attempts.list_attempts(db, run.id or 0)
    assert [(one.gpu, one.outcome, one.error_code) for one in tries] == [
        ("GPU-bad", "failed", "gpu_failed"),
        ("GPU-good", "", ""),
    ]


def test_second_gpu_that_fails_ends_the_run(db: Session) -> None:
    make_run(db, precision="fp32")
    run = claim(db, 0, 1)
    end(db, run, ERROR)
    end(db, claim(db, 0, 1), ERROR)

    assert (run.status, run.error_code) == (RunStatus.FAILED, "gpu_failed")
    assert gpu_health.list_quarantined(db) == {}


def test_only_gpu_is_used_again(db: Session) -> None:
    alone = GpuPools(hardware=replace(MACHINE, gpus=(BAD,)), free=(0,))
    make_run(db, precision="fp32")
    end(db, claim(db, 0), ERROR)

    again = queue.claim(db, "w", 1, pools=alone)
    assert again is not None
    assert again.gpu == 0


def test_run_that_was_asked_to_stop_does_not_start_again(db: Session) -> None:
    make_run(db, precision="fp32")
    run = claim(db, 0, 1)
    run.status = RunStatus.STOPPING
    end(db, run, ERROR)

    assert run.status is RunStatus.FAILED


def test_gpu_that_fails_two_runs_is_in_quarantine_until_released(db: Session) -> None:
    fail_then_succeed(db)
    assert gpu_health.list_quarantined(db) == {}
    fail_then_succeed(db)
    assert gpu_health.list_quarantined(db) == {
        "GPU-bad": "runs failed on it that succeeded on another GPU"
    }

    gpu_health.release(db, "GPU-bad")
    assert gpu_health.list_quarantined(db) == {}
    fail_then_succeed(db)
    assert gpu_health.list_quarantined(db) == {}
    fail_then_succeed(db)
    assert set(gpu_health.list_quarantined(db)) == {"GPU-bad"}


def test_failures_before_many_good_runs_do_not_count(db: Session) -> None:
    fail_then_succeed(db)
    for _ in range(20):
        make_run(db, precision="fp32")
        end(db, claim(db, 0), Finished(metrics={}))
    fail_then_succeed(db)

    assert gpu_health.list_quarantined(db) == {}


@pytest.mark.parametrize("gpu", ["GPU-bad", "GPU-other"])
def test_gpu_that_is_not_in_quarantine_cannot_be_released(gpu: str, db: Session) -> None:
    with pytest.raises(NotFoundError, match="is not in quarantine"):
        gpu_health.release(db, gpu)
