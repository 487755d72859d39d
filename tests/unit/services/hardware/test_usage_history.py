"""Samples are kept for an hour; a run keeps a limited number of them."""

from datetime import UTC, datetime, timedelta

from sqlmodel import Session, select

from studio.db.states import RunStatus
from studio.db.tables import HardwareSample
from studio.hardware_usage.usage import HardwareUsage, RunUsage
from studio.services.hardware import usage_history
from studio.services.hardware.usage_history import MAX_POINTS, Point
from studio.services.runs import run_commands
from tests.support.factories import make_running
from tests.support.hardware_samples import make_point, make_usage

START = datetime(2026, 1, 1, tzinfo=UTC)


def with_run(run_id: int, cpu: float = 0.5) -> HardwareUsage:
    return make_usage(cpu=cpu, runs=[RunUsage(run_id=run_id, cpu=cpu, memory_bytes=1)])


def record(db: Session, usage: HardwareUsage, seconds: float) -> None:
    point = Point(at=START + timedelta(seconds=seconds), usage=usage)
    usage_history.record(db, "worker", point)


def test_machines_show_their_recent_samples_oldest_first(db: Session) -> None:
    for age, cpu in ((10, 0.1), (5, 0.2), (0, 0.3)):
        usage_history.record(db, "w", make_point(make_usage(cpu=cpu), seconds_ago=age))

    (machine,) = usage_history.list_machines(db)

    assert [point.usage.cpu for point in machine.points] == [0.1, 0.2, 0.3]


def test_several_workers_of_one_machine_count_once(db: Session) -> None:
    for worker, host in (("a", "box"), ("b", "box"), ("c", "other")):
        usage_history.record(db, worker, make_point(make_usage(host=host)))

    assert [machine.host for machine in usage_history.list_machines(db)] == ["box", "other"]


def test_machine_that_is_no_longer_sampled_is_not_shown(db: Session) -> None:
    usage_history.record(db, "w", make_point(seconds_ago=60))

    assert usage_history.list_machines(db) == []


def test_samples_older_than_an_hour_are_deleted(db: Session) -> None:
    for seconds in (0, 1800, 3700):
        record(db, make_usage(), seconds)

    assert [sample.at for sample in db.exec(select(HardwareSample))] == [
        START + timedelta(seconds=1800),
        START + timedelta(seconds=3700),
    ]


def test_short_run_keeps_each_sample(db: Session) -> None:
    run_id = make_running(db).id or 0
    for index in range(12):
        # Heartbeats are not exactly five seconds apart.
        record(db, with_run(run_id), 5 * index + (0.3 if index % 2 else 0))

    assert len(usage_history.list_run_points(db, run_id)) == 12


def test_long_run_keeps_a_limited_number_with_its_average(db: Session) -> None:
    run_id = make_running(db).id or 0
    count = 4 * MAX_POINTS
    for index in range(count):
        record(db, with_run(run_id, cpu=1.0 if index % 2 else 0.0), 5 * index)

    points = usage_history.list_run_points(db, run_id)

    assert MAX_POINTS / 4 < len(points) <= MAX_POINTS + 1
    assert points[-1].at - points[0].at > timedelta(seconds=0.95 * 5 * count)
    late = [point.usage.cpu for point in points[-100:]]
    assert 0.4 < sum(late) / len(late) < 0.6


def test_sample_of_a_deleted_run_is_left_out(db: Session) -> None:
    record(db, with_run(999), 0)

    assert usage_history.list_run_points(db, 999) == []


def test_restart_deletes_the_samples_of_a_run(db: Session) -> None:
    run = make_running(db)
    run_id = run.id or 0
    record(db, with_run(run_id), 0)
    run_commands.cancel(db, run_id)
    run.status = RunStatus.CANCELLED
    db.flush()

    run_commands.restart(db, run_id)

    assert usage_history.list_run_points(db, run_id) == []
