"""The warm launcher of a real studio is killed; each test asks what becomes of the runs."""

import signal
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from tests.faults.test_processes import LONG, trainer_of
from tests.support.live_studio import Studio, launcher_of, run_of, steps_of, submit
from tests.support.waiting import until

pytestmark = pytest.mark.faults


@pytest.fixture
def studio(make_studio: Callable[..., Studio]) -> Studio:
    return make_studio(warm=True)


def test_a_killed_launcher_takes_no_run_along_and_stops_no_next_one(studio: Studio) -> None:
    launcher = launcher_of(studio)
    first, second = submit(studio, "first", max_steps=LONG), submit(studio, "second", max_steps=3)
    until(lambda: run_of(studio, first)["step"] >= 3)
    forked = trainer_of(studio, first)
    assert launcher in forked.parents()
    launcher.kill()
    seen = run_of(studio, first)["step"]
    until(lambda: run_of(studio, first)["step"] > seen)
    studio.api.post(f"/runs/{first}/cancel").raise_for_status()
    until(lambda: run_of(studio, first)["status"] == "cancelled")
    until(lambda: run_of(studio, second)["status"] == "succeeded", seconds=180)

    assert not forked.is_running()
    assert run_of(studio, second)["attempt"] == 1


def test_a_run_that_outlived_the_studio_is_followed_and_its_end_explained(studio: Studio) -> None:
    launcher = launcher_of(studio)
    number = submit(studio, max_steps=LONG)
    until(lambda: run_of(studio, number)["step"] >= 3)
    studio.kill()
    studio.wait()
    studio.start()
    seen = run_of(studio, number)["step"]
    until(lambda: run_of(studio, number)["step"] > seen)
    trainer_of(studio, number).send_signal(signal.SIGKILL)
    until(lambda: len(attempts_of(studio, number)) == 2)
    until(lambda: not launcher.is_running() or launcher.status() == psutil.STATUS_ZOMBIE)

    steps = steps_of(studio, number)
    assert steps == [float(step) for step in range(1, len(steps) + 1)]
    first = attempts_of(studio, number)[0]
    assert (first["outcome"], first["exit_code"]) == ("lost", -signal.SIGKILL)


def attempts_of(studio: Studio, number: int) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = studio.api.get(f"/runs/{number}/attempts").json()["data"]
    return told
