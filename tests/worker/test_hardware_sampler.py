"""The worker samples its machine, with the real sensors."""

import threading
from collections.abc import Mapping
from pathlib import Path

from sqlalchemy import Engine

from studio.db.session import read_session
from studio.hardware_usage.sampler import RunProcess
from studio.hardware_usage.usage import HardwareUsage
from studio.services.hardware import usage_history
from studio.settings import Settings
from studio.worker import hardware_sampler
from studio.worker.hardware_sampler import HardwareSampler
from studio.worker.loop import WorkerLoop
from tests.support.hardware_samples import make_usage
from tests.support.waiting import wait_until


def test_heartbeat_stores_the_newest_sample_once(engine: Engine, settings: Settings) -> None:
    loop, stop = WorkerLoop.local(engine, settings), threading.Event()
    loop.sampler.ensure_running(stop)
    wait_until(lambda: loop.sampler._newest is not None)
    stop.set()

    for _ in range(2):
        loop._heartbeat()

    with read_session(engine) as db:
        (machine,) = usage_history.list_machines(db)
    assert len(machine.points) == 1
    assert machine.usage.memory_total_bytes > 0


class SlowSensors:
    """Sensors whose driver does not answer."""

    def __init__(self, _home: Path) -> None:
        self.asked = threading.Event()
        self.answer = threading.Event()

    def sample(self, _runs: Mapping[int, RunProcess]) -> HardwareUsage:
        self.asked.set()
        self.answer.wait()
        return make_usage()


def test_driver_that_does_not_answer_delays_nothing(tmp_path: Path) -> None:
    sensors, stop = SlowSensors(tmp_path), threading.Event()
    sampler = HardwareSampler(tmp_path, lambda _home: sensors)
    sampler.ensure_running(stop)
    assert sensors.asked.wait(10 * hardware_sampler.FIRST_SECONDS)

    assert sampler.take() is None

    stop.set()
    sensors.answer.set()
    wait_until(lambda: sampler._newest is not None)
