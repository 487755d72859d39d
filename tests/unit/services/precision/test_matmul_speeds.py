"""How fast a machine multiplies is measured once, kept, and told where formats are chosen."""

from dataclasses import replace

import pytest
from sqlmodel import Session, col, select

from studio.db.states import TaskStatus
from studio.db.tasks import Task
from studio.hardware import Hardware, detect
from studio.recipe.precision import PRECISIONS
from studio.services.precision import recommendation
from studio.services.tasks import tasks
from studio.services.workers import workers
from studio.settings import Settings

MACHINE = Hardware(processor="P", cores=2, memory_bytes=2**34, native_bf16=False, torch="2.13")


def probes(db: Session) -> list[Task]:
    query = select(Task).where(Task.kind == workers.SPEED_TASK_KIND).order_by(col(Task.id))
    return list(db.exec(query))


def measured(db: Session, machine: Hardware, **seconds: float) -> Hardware:
    workers.enqueue_speed_measurement(db, machine)
    probe = probes(db)[-1]
    probe.result = {"seconds": {"float32": 0.01, "bfloat16": 0.08, "float16": 0.1} | seconds}
    tasks.close_work(probe, TaskStatus.SUCCEEDED)
    db.flush()
    return workers.with_measured_speeds(db, machine)


def test_machine_is_measured_once(db: Session, settings: Settings) -> None:
    workers.enqueue_speed_measurement(db, MACHINE)
    workers.enqueue_speed_measurement(db, MACHINE)
    measured(db, MACHINE)
    tasks.cleanup(db, settings.tasks)
    workers.enqueue_speed_measurement(db, MACHINE)

    assert len(probes(db)) == 1


@pytest.mark.parametrize("status", [TaskStatus.FAILED, TaskStatus.CANCELLED])
def test_failed_measurement_is_repeated(db: Session, status: TaskStatus) -> None:
    workers.enqueue_speed_measurement(db, MACHINE)
    tasks.close_work(probes(db)[0], status)
    workers.enqueue_speed_measurement(db, MACHINE)

    assert [one.status for one in probes(db)] == [status, TaskStatus.QUEUED]
    assert workers.with_measured_speeds(db, MACHINE) == MACHINE


@pytest.mark.parametrize("change", [{"processor": "Q"}, {"cores": 4}, {"torch": "2.14"}])
def test_each_machine_is_measured_separately(db: Session, change: dict[str, object]) -> None:
    other = replace(MACHINE, **change)  # type: ignore[arg-type] # one field each
    measured(db, MACHINE)
    workers.enqueue_speed_measurement(db, other)

    assert len(probes(db)) == 2
    assert workers.with_measured_speeds(db, other).product_times == {}


def test_machine_without_torch_is_not_measured(db: Session) -> None:
    workers.enqueue_speed_measurement(db, replace(MACHINE, torch=""))

    assert probes(db) == []


def test_warnings_include_measured_speeds(db: Session) -> None:
    slow = measured(db, MACHINE, bfloat16=0.0834)

    assert PRECISIONS["bf16"].warning(slow) == (
        "accurate, but matrix products take 8.3 times as long as in float32"
    )
    assert PRECISIONS["fp16"].warning(slow).endswith("10 times as long as in float32")
    assert PRECISIONS["fp32"].warning(slow) == ""


def test_fast_formats_give_no_warning(db: Session) -> None:
    fast = measured(db, MACHINE, bfloat16=0.004, float16=0.0102)

    assert [PRECISIONS[name].warning(fast) for name in ("bf16", "fp16")] == ["", ""]


@pytest.mark.parametrize(("is_told", "seconds"), [(False, 0.005), (True, 0.02)])
def test_measured_speed_overrides_reported_bf16_support(
    db: Session,
    is_told: bool,  # noqa: FBT001 -- a case of the parametrised test
    seconds: float,
) -> None:
    machine = measured(db, replace(MACHINE, native_bf16=is_told), bfloat16=seconds)

    assert recommendation.fast_formats(machine) == (
        recommendation.NEITHER if is_told else recommendation.BFLOAT16
    )


def test_training_hardware_includes_measured_speeds(db: Session) -> None:
    measured(db, detect())

    assert workers.training_hardware(db).product_times == pytest.approx(
        {"float32": 1, "bfloat16": 8, "float16": 10}
    )
