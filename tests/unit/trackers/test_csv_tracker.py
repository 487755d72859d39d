"""CSV files of a run: what they hold, after kills and later attempts, too."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from studio.protocols.events import EventLog
from studio.trackers import csv as csv_tracker
from studio.trackers.contract import Batch, Point, Target, TrackerOptions, TrackerState
from tests.support.tracked_runs import AT, END, alarmed, run_folder, sampled, tracking_job


@pytest.fixture
def target(tmp_path: Path) -> Target:
    facts = tracking_job(run_folder(tmp_path)).facts
    folder, log = tmp_path / "csv", EventLog(tmp_path / "events.jsonl")
    return Target(facts=facts, options=TrackerOptions(), folder=folder, log=log)


def batch(*steps: int, loss: float = 0.5) -> Batch:
    points = (
        Point(step=step, at=AT, epoch=0.1, tokens=64, seconds=1.5, values={"loss": loss})
        for step in steps
    )
    return Batch(points=tuple(points))


def rows(state: TrackerState, name: str) -> list[dict[str, str]]:
    with (Path(state.place) / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_metrics_have_their_steps_and_times(target: Target) -> None:
    state = TrackerState()
    csv_tracker.open_run(target, state).write(batch(1, 2))

    assert [row["step"] for row in rows(state, "metrics.csv")] == ["1", "2"]
    assert rows(state, "metrics.csv")[0] == {
        "step": "1",
        "time": "2026-11-28T12:00:00+00:00",
        "epoch": "0.1",
        "tokens": "64",
        "seconds": "1.5",
        "metric": "loss",
        "value": "0.5",
    }


def test_values_that_are_not_finite_are_spelled_out(target: Target) -> None:
    state = TrackerState()
    writer = csv_tracker.open_run(target, state)
    writer.write(batch(1, loss=float("nan")))
    writer.write(batch(2, loss=float("-inf")))

    assert [row["value"] for row in rows(state, "metrics.csv")] == ["nan", "-inf"]


def test_what_was_written_after_the_stored_state_is_cut_off(target: Target) -> None:
    state = TrackerState()
    csv_tracker.open_run(target, state).write(batch(1))
    stored = state.model_copy(deep=True)
    csv_tracker.open_run(target, state).write(batch(2, 3))
    csv_tracker.open_run(target, stored).write(batch(2))

    assert [row["step"] for row in rows(stored, "metrics.csv")] == ["1", "2"]


def test_steps_can_be_taken_back(target: Target) -> None:
    state = TrackerState()
    writer = csv_tracker.open_run(target, state)
    writer.write(batch(1, 2, 3))

    assert writer.rewind(1)
    writer.write(batch(2, loss=7.0))
    assert [(row["step"], row["value"]) for row in rows(state, "metrics.csv")] == [
        ("1", "0.5"),
        ("2", "7.0"),
    ]


def test_answers_and_alarms_have_files_of_their_own(target: Target) -> None:
    state = TrackerState()
    writer = csv_tracker.open_run(target, state)
    writer.write(Batch(samples=(sampled(5, "=1+1"),), alarms=(alarmed(5),)))

    # A spreadsheet must not run what a model wrote.
    assert rows(state, "answers.csv")[0]["answer"] == "'=1+1"
    assert rows(state, "alarms.csv")[0]["code"] == "nan_loss"


def test_facts_say_what_the_run_was_and_how_it_ended(target: Target) -> None:
    state = TrackerState()
    writer = csv_tracker.open_run(target, state)
    writer.write(Batch(resolved={"weights": "float32"}, final={"eval_loss": 0.5}))
    writer.close(END)

    facts = json.loads((Path(state.place) / "run.json").read_text("utf-8"))
    assert facts["recipe"]["precision"] == "fp32"
    assert (facts["resolved"], facts["final"]) == ({"weights": "float32"}, {"eval_loss": "0.5"})
    assert facts["end"]["status"] == "succeeded"


def test_project_is_a_safe_name_of_a_folder(target: Target) -> None:
    state = TrackerState()
    csv_tracker.open_run(replace(target, options=TrackerOptions(project="../../etc")), state)

    assert Path(state.place).is_relative_to(target.folder)
