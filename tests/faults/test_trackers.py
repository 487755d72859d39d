"""A process that sends a run is killed at random places: each step arrives, and once."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from studio.protocols.tasks import TaskDir, TaskSpec
from studio.settings import TrackerName
from studio.trackers.contract import TrackingResult
from studio.trackers.table import TRACKERS
from tests.faults import killed_sender
from tests.support.tracked_runs import (
    expected_losses,
    resumed_run,
    run_folder,
    tracking_job,
    write_log,
)

pytestmark = pytest.mark.faults

KILLS = 20


def require(tracker: TrackerName) -> None:
    if not TRACKERS[tracker].is_installed:
        pytest.skip(f"{tracker} is not installed here")


def python(*arguments: str, **variables: str) -> str:
    """Run Python; what it imports and starts is its own."""
    environment = os.environ | variables | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, *arguments]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def send(
    home: Path, *trackers: TrackerName, seconds: float = 60, **variables: str
) -> TrackingResult:
    """Send a run as the worker's task does."""
    folder = TaskDir(home / "chores" / "1")
    folder.root.mkdir(parents=True)
    job = tracking_job(run_folder(home), *trackers, answer_seconds=seconds)
    spec = TaskSpec(kind="track", params=job.model_dump(mode="json"))
    folder.job.write_text(spec.model_dump_json(), encoding="utf-8")
    entry = ("-m", "studio.runner.work_main", "task", str(folder.root))
    python(*entry, STUDIO_HOME=str(home), **variables)
    return TrackingResult.model_validate_json(folder.result.read_text(encoding="utf-8"))


def losses(home: Path, tracker: TrackerName) -> list[tuple[int, float]]:
    text = python("-m", "tests.support.tracker_readers", tracker, str(home))
    return [(step, loss) for step, loss in json.loads(text)]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("tracker", TRACKERS)
def test_each_step_arrives_once_however_often_sending_is_killed(
    tmp_path: Path, tracker: TrackerName
) -> None:
    require(tracker)
    homes = python("-m", "tests.faults.killed_sender", str(tmp_path), tracker, str(KILLS)).split()

    expected = sorted(expected_losses(killed_sender.STEPS).items())
    assert homes
    for home in homes:
        assert losses(Path(home), tracker) == expected


@pytest.mark.parametrize("tracker", TRACKERS)
def test_old_run_with_two_attempts_is_imported(tmp_path: Path, tracker: TrackerName) -> None:
    require(tracker)
    write_log(run_folder(tmp_path), *resumed_run(60))
    result = send(tmp_path, tracker).trackers[tracker]

    assert (result.error, result.is_closed) == ("", True)
    assert losses(tmp_path, tracker) == sorted(expected_losses(60).items())


@pytest.fixture
def black_hole() -> Iterator[str]:
    """Accept connections, and never answer."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("tracker", ["mlflow", "wandb"])
def test_server_that_never_answers_keeps_no_other_tracker_waiting(
    tmp_path: Path, black_hole: str, tracker: TrackerName
) -> None:
    require(tracker)
    write_log(run_folder(tmp_path), *resumed_run(60))
    address = {f"STUDIO_{tracker.upper()}_URL": black_hole, "STUDIO_WANDB_KEY": "k" * 40}
    began = time.monotonic()
    result = send(tmp_path, "csv", tracker, seconds=20, **address).trackers

    assert (result["csv"].is_closed, result[tracker].is_closed) == (True, False)
    assert result[tracker].failures == 1
    assert "did not answer" in result[tracker].error or "failed" in result[tracker].error
    assert time.monotonic() - began < 300
    assert losses(tmp_path, "csv") == sorted(expected_losses(60).items())
