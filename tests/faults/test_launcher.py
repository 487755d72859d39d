"""The warm launcher of a real studio is killed; each test asks what becomes of the runs."""

import signal
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from tests.faults.test_processes import LONG, trainer_of
from tests.support.live_studio import Studio, get_run, launcher_process, metric_steps, submit_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults


@pytest.fixture
def studio(make_studio: Callable[..., Studio]) -> Studio:
    return make_studio(warm=True)


def test_killed_launcher_does_not_stop_current_or_next_run(studio: Studio) -> None:
    launcher = launcher_process(studio)
    first, second = (
        submit_run(studio, "first", max_steps=LONG),
        submit_run(studio, "second", max_steps=3),
    )
    wait_until(lambda: get_run(studio, first)["step"] >= 3)
    forked = trainer_of(studio, first)
    assert launcher in forked.parents()
    launcher.kill()
    seen = get_run(studio, first)["step"]
    wait_until(lambda: get_run(studio, first)["step"] > seen)
    studio.api.post(f"/runs/{first}/cancel").raise_for_status()
    wait_until(lambda: get_run(studio, first)["status"] == "cancelled")
    wait_until(lambda: get_run(studio, second)["status"] == "succeeded")

    assert not forked.is_running()
    assert get_run(studio, second)["attempt"] == 1


def test_restarted_studio_monitors_running_run_and_records_its_exit(studio: Studio) -> None:
    launcher = launcher_process(studio)
    number = submit_run(studio, max_steps=LONG)
    wait_until(lambda: get_run(studio, number)["step"] >= 3)
    studio.kill()
    studio.wait()
    studio.start()
    seen = get_run(studio, number)["step"]
    wait_until(lambda: get_run(studio, number)["step"] > seen)
    trainer_of(studio, number).send_signal(signal.SIGKILL)
    wait_until(lambda: len(attempts_of(studio, number)) == 2)
    wait_until(lambda: not launcher.is_running() or launcher.status() == psutil.STATUS_ZOMBIE)

    steps = metric_steps(studio, number)
    assert steps == [float(step) for step in range(1, len(steps) + 1)]
    first = attempts_of(studio, number)[0]
    assert (first["outcome"], first["exit_code"]) == ("lost", -signal.SIGKILL)


def attempts_of(studio: Studio, number: int) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = studio.api.get(f"/runs/{number}/attempts").json()["data"]
    return told
