"""A run with a time limit: how many steps it chooses, and that choosing them changes nothing."""

import time
from pathlib import Path

import pytest

from studio.protocols.events import Finished, PhaseChanged, Started
from studio.protocols.run_dir import RunDir
from studio.runner.execution import execute_run
from studio.training.stop_handler import StopHandler
from studio.training.time_limit import Pace, count_steps
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import LORA, SAVED

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

UNLIMITED = {"optimisation__max_steps": 100_000, "evaluation__eval_steps": 0.5}
MANY = {"optimisation__max_steps": 6, "evaluation__eval_steps": 3}


def total_steps(run: RunDir) -> list[int]:
    return [event.total_steps for event in tiny.events_of(run, Started)]


def test_chosen_steps_fill_time_limit(model: Path, tmp_path: Path) -> None:
    began = time.monotonic()

    run = tiny.train(tmp_path / "run", model, **UNLIMITED, optimisation__max_minutes=0.2)

    seconds = time.monotonic() - began
    (steps,) = total_steps(run)
    assert isinstance(tiny.last_event(run), Finished)
    assert 1 < steps < 100_000
    assert 4 < seconds < 40  # wide, because the machine may be busy
    assert tiny.events_of(run, Started)[0].resolved["steps_in_time"] == steps
    assert "timing" in [event.name for event in tiny.events_of(run, PhaseChanged)]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_measuring_changes_nothing_of_the_run(precision: str, model: Path, tmp_path: Path) -> None:
    knobs = {**MANY, **LORA, "precision": precision, "samples__prompts": 2}
    plain = tiny.train(tmp_path / "plain", model, **knobs)
    limited = tiny.train(tmp_path / "limited", model, **knobs, optimisation__max_minutes=10)

    assert total_steps(limited) == [6]
    assert resumed_runs.curve(limited) == resumed_runs.curve(plain)
    assert resumed_runs.result(limited) == resumed_runs.result(plain)
    assert resumed_runs.bits(limited) == resumed_runs.bits(plain)


def test_resumed_run_keeps_its_number_of_steps(model: Path, tmp_path: Path) -> None:
    knobs = {**UNLIMITED, **LORA, "optimisation__max_minutes": 0.1}
    whole = tiny.train(tmp_path / "whole", model, **knobs, **SAVED)
    (steps,) = total_steps(whole)
    again = resumed_runs.interrupt_run(whole, steps - 2, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0

    assert total_steps(again) == [steps, steps]
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, 48),  # 94 s, less 5 validations and 4 rounds of answers
        ({"evaluation__eval_steps": 10.0}, 41),  # each step also pays a tenth of one validation
        ({"samples__between": 0}, 60),
    ],
)
def test_steps_leave_time_for_everything_else(changes: dict[str, float], steps: int) -> None:
    usual: dict[str, float] = {"evaluation__eval_steps": 0.25, "samples__between": 3}
    recipe = tiny.recipe(**(usual | changes))

    assert count_steps(recipe, Pace(step=1.0, validation=6.0, answers=4.0), 100.0) == steps


def test_exhausted_time_still_makes_one_step() -> None:
    assert count_steps(tiny.recipe(), Pace(step=1.0, validation=1.0, answers=1.0), -5.0) == 1
