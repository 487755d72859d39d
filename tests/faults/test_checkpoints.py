"""A training process is killed, paused and cut short; each test asks what is left, and goes on."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from studio.protocols.events import Checkpointed, Finished, MetricsLogged, Paused, Stopped
from studio.protocols.run_dir import RunCommand, RunDir
from studio.training.checkpoints import checksums
from tests.support.waiting import wait_until
from tests.training import tiny
from tests.training.checkpoints import resumed_runs

pytestmark = [pytest.mark.faults, pytest.mark.filterwarnings("ignore::FutureWarning")]

KNOBS: dict[str, Any] = {
    **resumed_runs.LORA,
    "optimisation__max_steps": 100,
    "optimisation__gradient_accumulation_steps": 2,
    "optimisation__per_device_train_batch_size": 3,
    "evaluation__eval_steps": 20,
    "checkpoints__save_steps": 4,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("model") / "tiny", tiny.llama())


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Train the run that all others must equal, undisturbed."""
    run = tiny.write_run(tmp_path_factory.mktemp("whole") / "run", model, **KNOBS)
    assert start(run).wait(300) == 0
    return run


def start(run: RunDir) -> subprocess.Popen[bytes]:
    """Start a runner as the worker does; one thread, as other tests train beside this one."""
    with run.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "studio.runner", str(run.root)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )


def ask(run: RunDir, process: subprocess.Popen[bytes], word: RunCommand) -> int:
    run.command.write_text(word, encoding="utf-8")
    process.send_signal(signal.SIGTERM)
    return process.wait(120)


def is_past(run: RunDir, step: int) -> Callable[[], bool]:
    return lambda: any(event.step >= step for event in tiny.events_of(run, MetricsLogged))


def killed_past(run: RunDir, step: int) -> None:
    process = start(run)
    wait_until(is_past(run, step))
    process.kill()
    process.wait()


def equals(run: RunDir, other: RunDir) -> bool:
    return (resumed_runs.bits(run), resumed_runs.curve(run), resumed_runs.result(run)) == (
        resumed_runs.bits(other),
        resumed_runs.curve(other),
        resumed_runs.result(other),
    )


def test_run_killed_twice_equals_uninterrupted_run(
    whole: RunDir, model: Path, tmp_path: Path
) -> None:
    run = tiny.write_run(tmp_path / "run", model, **KNOBS)
    killed_past(run, 9)
    killed_past(resumed_runs.resume_run(run), 31)

    assert start(resumed_runs.resume_run(run)).wait(300) == 0

    assert equals(run, whole)
    (second, first_step), (third, second_step) = resumed_runs.resumed_at(run)
    assert (second, third) == (2, 3)
    assert (first_step >= 8, second_step >= 28) == (True, True)


def test_kill_during_save_leaves_no_partial_checkpoint(
    whole: RunDir, model: Path, tmp_path: Path
) -> None:
    run = tiny.write_run(tmp_path / "run", model, **KNOBS)
    process = start(run)
    wait_until(lambda: len(tiny.events_of(run, Checkpointed)) > 0)
    watched = psutil.Process(process.pid)

    def is_saving() -> bool:
        watched.suspend()
        wait_until(lambda: watched.status() == psutil.STATUS_STOPPED)
        caught = any(run.checkpoints.glob(".checkpoint-*.partial"))
        if not caught:
            watched.resume()
        return caught

    wait_until(is_saving)
    process.kill()
    process.wait()
    newest = max(event.step for event in tiny.events_of(run, Checkpointed))

    assert start(resumed_runs.resume_run(run)).wait(300) == 0

    assert resumed_runs.resumed_at(run) == [(2, newest)]
    assert equals(run, whole)


def test_run_resumed_after_pause_equals_uninterrupted_run(
    whole: RunDir, model: Path, tmp_path: Path
) -> None:
    run = tiny.write_run(tmp_path / "run", model, **KNOBS)
    process = start(run)
    wait_until(is_past(run, 5))
    assert ask(run, process, "pause") == 0
    paused = tiny.last_event(run)
    assert isinstance(paused, Paused)
    assert tiny.events_of(run, Checkpointed)[-1].step == paused.step
    assert not run.command.exists()

    assert start(resumed_runs.resume_run(run)).wait(300) == 0

    assert resumed_runs.resumed_at(run) == [(2, paused.step)]
    assert equals(run, whole)


def test_stop_and_keep_saves_trained_weights(model: Path, tmp_path: Path) -> None:
    endless = {"precision": "bf16_kahan", "optimisation__max_steps": 100_000, "samples__prompts": 1}
    run = tiny.write_run(tmp_path / "run", model, **endless, checkpoints__save_steps=1)
    process = start(run)
    wait_until(is_past(run, 3))

    assert ask(run, process, "keep") == 0

    stopped = tiny.last_event(run)
    assert isinstance(stopped, Stopped)
    assert stopped.kept
    assert stopped.metrics["eval_loss"] == tiny.metric_values(run, "eval_loss")[-1]
    assert tiny.events_of(run, MetricsLogged)[-1].step == stopped.step
    kept = AutoModelForCausalLM.from_pretrained(run.artifacts)
    assert {p.dtype for p in kept.parameters()} == {torch.bfloat16}
    told = f"Training was stopped by hand at step {stopped.step} of 100000."
    assert told in (run.artifacts / "README.md").read_text(encoding="utf-8")
    assert not run.checkpoints.exists()


def test_sigusr1_writes_stack_trace_to_run_log(model: Path, tmp_path: Path) -> None:
    run = tiny.write_run(tmp_path / "run", model, optimisation__max_steps=100_000)
    process = start(run)
    wait_until(is_past(run, 1))

    process.send_signal(signal.SIGUSR1)

    wait_until(lambda: "(most recent call first)" in run.log.read_text(encoding="utf-8"))
    assert ask(run, process, "cancel") == 0
    assert tiny.last_event(run).kind == "stopped"
    assert tiny.events_of(run, Finished) == []


def test_cancelled_run_keeps_its_checkpoints(model: Path, tmp_path: Path) -> None:
    run = tiny.write_run(tmp_path / "run", model, **KNOBS)
    process = start(run)
    wait_until(lambda: len(tiny.events_of(run, Checkpointed)) > 0)

    assert ask(run, process, "cancel") == 0

    assert [event.kept for event in tiny.events_of(run, Stopped)] == [False]
    newest = tiny.events_of(run, Checkpointed)[-1].step
    assert checksums.verify_folder(run.checkpoints / f"checkpoint-{newest}").step == newest
    assert not run.artifacts.exists()
