"""The process that sends a run to its trackers: what goes wrong is said in words, and passes."""

import csv
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from studio.protocols.run_dir import RunDir
from studio.runner.tasks.track import Sending
from studio.settings import Settings, TrackerName
from studio.trackers import contract
from studio.trackers.contract import RETRY_SECONDS, RunEnd, TrackerState
from studio.trackers.table import TRACKERS
from tests.support.tracked_runs import (
    END,
    expected_losses,
    logged,
    resumed_run,
    run_folder,
    sampled,
    started,
    tracking_job,
    write_log,
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return run_folder(tmp_path)


def sending(
    run: RunDir,
    settings: Settings,
    end: RunEnd | None = END,
    *,
    tracker: TrackerName = "csv",
    seconds: float = 60,
) -> Sending:
    return Sending(tracker, tracking_job(run, tracker, end=end, answer_seconds=seconds), settings)


def send(run: RunDir, settings: Settings, end: RunEnd | None = END) -> Sending:
    """Send what there is, as one process does."""
    one = sending(run, settings, end)
    while one.try_next():
        pass
    one.try_closing()
    return one


def losses(settings: Settings) -> list[tuple[int, float]]:
    (path,) = settings.trackers_folder.glob("csv/*/*/metrics.csv")
    with path.open(newline="", encoding="utf-8") as file:
        return [(int(row["step"]), float(row["value"])) for row in csv.DictReader(file)]


def test_old_run_is_sent_from_its_first_event(run: RunDir, settings: Settings) -> None:
    write_log(run, *resumed_run(60))
    sent = send(run, settings)

    assert losses(settings) == sorted(expected_losses(60).items())
    assert (sent.outcome.is_closed, sent.outcome.error) == (True, "")
    assert sent.outcome.offset == run.events.path.stat().st_size


def test_run_that_trains_is_sent_as_it_goes(run: RunDir, settings: Settings) -> None:
    write_log(run, started(), logged(1), logged(2))
    first = send(run, settings, end=None)
    assert (losses(settings), first.outcome.is_closed) == ([(1, 1.0)], False)

    write_log(run, sampled(2), logged(3))
    last = send(run, settings)
    assert losses(settings) == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert last.outcome.is_closed


def test_run_that_is_retried_is_opened_again(run: RunDir, settings: Settings) -> None:
    write_log(run, started(), logged(1))
    send(run, settings, RunEnd(status="failed", at=END.at, error="It did not fit."))
    write_log(run, started(), logged(1, loss=7.0), logged(2, loss=7.0))

    assert not send(run, settings, end=None).outcome.is_closed
    assert send(run, settings).outcome.is_closed
    assert losses(settings) == [(1, 7.0), (2, 7.0)]


def test_tracker_that_never_answers_is_given_up_for_now(run: RunDir, settings: Settings) -> None:
    write_log(run, started(), logged(1), logged(2))
    send(run, settings, end=None)
    write_log(run, logged(3))
    (folder,) = settings.trackers_folder.glob("csv/*/*")
    (folder / "run.json").unlink()
    os.mkfifo(folder / "run.json")  # Reading it waits for a writer that never comes.

    one = sending(run, settings, seconds=0.2)
    assert not one.try_next()
    assert one.outcome.error == "CSV files did not answer for 0.2 seconds."
    assert one.outcome.failures == 1
    assert losses(settings) == [(1, 1.0)]


def test_failing_tracker_waits_and_can_be_told_to_try_again(
    run: RunDir, settings: Settings
) -> None:
    write_log(run, started(), logged(1))
    settings.trackers_folder.mkdir()
    in_the_way = settings.trackers_folder / "csv"
    in_the_way.touch()
    one, began = sending(run, settings), datetime.now(UTC)
    assert not one.try_next()
    in_the_way.unlink()

    assert not one.try_next(), "Another process tries again, when it is time."
    assert one.outcome.retry_at is not None
    assert RETRY_SECONDS[0] - 5 < (one.outcome.retry_at - began).total_seconds()
    assert not one.is_retry_due()
    contract.ask(run.trackers, "csv", "retry")
    assert not one.try_next()
    assert one.is_retry_due()
    assert send(run, settings).outcome.error == ""


def test_folder_that_cannot_be_written_is_named(run: RunDir, settings: Settings) -> None:
    write_log(run, started(), logged(1))
    settings.trackers_folder.mkdir()
    (settings.trackers_folder / "csv").touch()

    assert send(run, settings).outcome.error == "CSV files: csv cannot be written: file exists."


def test_full_disk_is_said(run: RunDir, settings: Settings) -> None:
    write_log(run, started(), logged(1))
    send(run, settings, end=None)
    (folder,) = settings.trackers_folder.glob("csv/*/*")
    (folder / "run.new").symlink_to("/dev/full")

    assert send(run, settings).outcome.error == "The disk is full."


def test_sending_stops_when_it_is_asked_to(run: RunDir, settings: Settings) -> None:
    write_log(run, started(), logged(1), logged(2))
    one = sending(run, settings, end=None)
    assert one.try_next()
    contract.ask(run.trackers, "csv", "stop")
    write_log(run, logged(3))

    assert not one.try_next()
    assert one.has_ended
    assert losses(settings) == [(1, 1.0)]


def test_files_that_were_deleted_are_written_again(run: RunDir, settings: Settings) -> None:
    write_log(run, started(), logged(1), logged(2))
    send(run, settings, end=None)
    shutil.rmtree(settings.trackers_folder)
    write_log(run, logged(3))
    send(run, settings)

    assert losses(settings) == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_state_that_was_never_stored_is_written_again(run: RunDir, settings: Settings) -> None:
    write_log(run, *resumed_run(30))
    send(run, settings)
    (run.trackers / "csv.json").unlink()
    send(run, settings)

    assert losses(settings) == sorted(expected_losses(30).items())


@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow", "wandb", "trackio"])
def test_missing_package_says_what_to_install(
    run: RunDir, settings: Settings, tracker: TrackerName
) -> None:
    if TRACKERS[tracker].is_installed:
        pytest.skip(f"{tracker} is installed here")
    write_log(run, started(), logged(1))
    one = sending(run, settings, tracker=tracker)

    assert not one.try_next()
    assert "is not installed" in one.outcome.error
    assert "pip install" in one.outcome.hint
    assert TrackerState.read(run.trackers, tracker).error == one.outcome.error
