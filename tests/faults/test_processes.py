"""Web and worker are ended, killed and started twice; each test asks what the user is left with."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest
from sqlalchemy import text

from studio.protocols.run_dir import RunDir
from studio.services.operations import home
from studio.settings import Settings
from studio.worker.processes import process
from tests.support.live_studio import Studio, free_port, get_run, metric_steps, submit_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults

LONG = 100_000


def refused(folder: Path, port: int, code: int = 1) -> str:
    """Start another studio that must not come up. Return what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "studio", "serve", "--port", str(port)],
        env=os.environ | {"STUDIO_HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == code
    return done.stderr


def test_port_in_use_is_reported(studio: Studio, tmp_path: Path) -> None:
    said = refused(tmp_path / "other", studio.port)

    first, second = said.splitlines()
    assert first == f"Port {studio.port} is in use by another program."
    assert second.startswith(f"Choose another: PORT={studio.port + 1} make run")


def test_second_studio_on_same_home_is_rejected(studio: Studio) -> None:
    said = refused(studio.home, free_port())

    assert said.startswith(f"Another studio is already using {studio.home} (web: process ")
    assert f"{studio.url}/" in said


def test_database_of_newer_version_is_rejected(tmp_path: Path) -> None:
    engine = home.open_home(Settings(home=tmp_path))
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()

    assert refused(tmp_path, free_port(), code=3).startswith(
        "This database was written by a newer version of the studio (9999)."
    )


def test_run_keeps_training_while_studio_is_stopped(studio: Studio) -> None:
    number = submit_run(studio, max_steps=LONG)
    wait_until(lambda: get_run(studio, number)["step"] >= 3)
    studio.interrupt()
    studio.wait()
    events = studio.home / "runs" / str(number) / "events.jsonl"
    size = events.stat().st_size
    wait_until(lambda: events.stat().st_size > size)
    studio.start()
    seen = get_run(studio, number)["step"]
    wait_until(lambda: get_run(studio, number)["step"] > seen)

    steps = metric_steps(studio, number)
    assert steps == [float(step) for step in range(1, len(steps) + 1)]
    assert get_run(studio, number)["attempt"] == 1


@pytest.mark.smoke
def test_restarted_studio_reattaches_to_run_after_kill(studio: Studio) -> None:
    number = submit_run(studio, max_steps=LONG)
    wait_until(lambda: get_run(studio, number)["step"] >= 3)
    studio.kill()
    studio.wait()
    studio.start()
    seen = get_run(studio, number)["step"]
    wait_until(lambda: get_run(studio, number)["step"] > seen)

    steps = metric_steps(studio, number)
    assert steps == [float(step) for step in range(1, len(steps) + 1)]


def test_run_fails_with_clear_error_after_repeated_kills(studio: Studio) -> None:
    number = submit_run(studio, max_steps=LONG)
    for attempt in (1, 2, 3):
        wait_until(partial(is_trained_by, studio, number, attempt))
        trainer_of(studio, number).send_signal(signal.SIGKILL)
    wait_until(lambda: get_run(studio, number)["status"] == "failed")

    error = get_run(studio, number)["error"]
    assert (error["code"], error["signal"], error["attempt"], error["message"]) == (
        "killed",
        "SIGKILL",
        3,
        (
            "The training process was killed from outside the studio (SIGKILL). "
            "It was attempted 3 times."
        ),
    )


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(0, id="while loading"),
        pytest.param(3, id="while training"),
    ],
)
def test_cancelled_run_leaves_no_process(studio: Studio, step: int) -> None:
    number = submit_run(studio, max_steps=LONG)
    wait_until(lambda: get_run(studio, number)["status"] != "queued")
    wait_until(lambda: get_run(studio, number)["step"] >= step)
    trainer = trainer_of(studio, number)
    studio.api.post(f"/runs/{number}/cancel").raise_for_status()
    wait_until(lambda: get_run(studio, number)["status"] == "cancelled")
    wait_until(lambda: not trainer.is_running() or trainer.status() == psutil.STATUS_ZOMBIE)

    assert not (studio.home / "runs" / str(number) / "artifacts").exists()


def test_second_studio_with_other_home_can_start(make_studio: Callable[[], Studio]) -> None:
    first, second = make_studio(), make_studio()

    assert [studio.api.get("/health").status_code for studio in (first, second)] == [200, 200]


def test_other_runs_stay_queued_while_one_trains(studio: Studio) -> None:
    numbers = [submit_run(studio, name, max_steps=LONG) for name in "abc"]
    wait_until(lambda: get_run(studio, numbers[0])["status"] == "running")
    told = studio.api.get("/queue").json()

    assert (told["slots"], told["used"]) == (1, 1)
    assert [run["id"] for run in told["waiting"]] == numbers[1:]


def trainer_of(studio: Studio, number: int) -> psutil.Process:
    """Find the process that trains a run, by its own word in the run's folder."""
    folder = RunDir(studio.home / "runs" / str(number))
    wait_until(lambda: process.find_training_process(folder) is not None)
    found = process.find_training_process(folder)
    assert found is not None
    return psutil.Process(found.pid)


def is_trained_by(studio: Studio, number: int, attempt: int) -> bool:
    run = get_run(studio, number)
    return (run["attempt"], run["status"]) == (attempt, "running")
