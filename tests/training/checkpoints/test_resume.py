"""A run that is cut off goes on from a checkpoint as if nothing had happened, to the last bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from studio.methods import RECIPE_ADAPTER
from studio.protocols.events import (
    AlarmRaised,
    Checkpointed,
    Finished,
    PhaseChanged,
    Sampled,
    Started,
)
from studio.protocols.run_dir import RunCommand
from studio.recipe import yaml
from studio.recipe.dotted_keys import merge
from studio.recipe.precision import PrecisionName
from studio.runner.execution import execute_run
from studio.services.runs import attempts
from studio.training.checkpoints import checksums
from studio.training.stop_handler import StopHandler
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import LORA, SAVED, STEPS

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]


def assert_equal_after(step: int, model: Path, folder: Path, **knobs: Any) -> None:  # noqa: ANN401 -- any knob
    """Train a run twice: whole, and cut off after a step. All of it must come out equal."""
    whole = tiny.train(folder / "whole", model, **STEPS, **SAVED, **knobs)
    again = resumed_runs.interrupt_run(whole, step, folder / "again")
    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.resumed_at(again) == [(2, step)]
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.result(again) == resumed_runs.result(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


@pytest.mark.parametrize(
    "precision",
    [
        pytest.param("fp16", marks=pytest.mark.smoke),  # has a loss scaler
        "bf16_kahan",  # keeps what rounding lost
        "bf16_stochastic",  # draws numbers
        *("fp32", "bf16", "bf16_pure", "bf16_dual"),
    ],
)
def test_resumed_run_equals_uninterrupted_run(
    precision: PrecisionName, model: Path, tmp_path: Path
) -> None:
    assert_equal_after(7, model, tmp_path, precision=precision)


def test_resumed_adapter_run_equals_uninterrupted_run(model: Path, tmp_path: Path) -> None:
    assert_equal_after(7, model, tmp_path, **LORA)


@pytest.mark.parametrize("order", ["random", "sequential"])
def test_resume_is_exact_for_every_sampling_strategy(
    order: str, model: Path, tmp_path: Path
) -> None:
    assert_equal_after(7, model, tmp_path, **LORA, optimisation__train_sampling_strategy=order)


@pytest.mark.parametrize("optim", ["adafactor", "sgd"])
def test_resume_is_exact_for_every_optimizer(optim: str, model: Path, tmp_path: Path) -> None:
    assert_equal_after(3, model, tmp_path, precision="fp32", optimisation__optim=optim)


@pytest.mark.parametrize("step", [5, 10, 12], ids=["one epoch", "two epochs", "all"])
def test_resume_at_epoch_end_equals_uninterrupted_run(
    step: int, model: Path, tmp_path: Path
) -> None:
    assert_equal_after(step, model, tmp_path, **LORA)


def test_saving_checkpoints_does_not_change_training(model: Path, tmp_path: Path) -> None:
    without = tiny.train(tmp_path / "without", model, **STEPS, **LORA)
    saved = tiny.train(tmp_path / "saved", model, **STEPS, **LORA, **SAVED)

    assert resumed_runs.bits(saved) == resumed_runs.bits(without)
    assert tiny.events_of(without, Checkpointed) == []


def test_resumed_run_reports_phases_and_keeps_initial_samples(model: Path, tmp_path: Path) -> None:
    whole = tiny.train(tmp_path / "whole", model, **SAVED, samples__prompts=1)
    again = resumed_runs.interrupt_run(whole, 2, tmp_path / "again")
    before = len(again.events.read()[0])

    execute_run(again.root, StopHandler())

    told = again.events.read()[0]
    kinds = [e.name if isinstance(e, PhaseChanged) else e.kind for e in told[before:]]
    assert [kind for kind in kinds if kind not in ("progressed", "checkpointed")] == [
        "resumed",
        "loading",
        "tokenising",
        "training",
        "started",
        "answering",
        "sampled",
        "saving",
        "finished",
    ]
    assert [event.seq for event in told] == list(range(1, len(told) + 1))
    first = [e.answer for e in tiny.events_of(whole, Sampled) if e.stage == "before"]
    assert (
        f"* before: {' '.join(first[0].split())}\n" in (again.artifacts / "README.md").read_text()
    )
    assert tiny.events_of(again, Started)[0].resolved == tiny.events_of(again, Started)[1].resolved


def test_resumed_early_stopping_run_keeps_same_best_weights(model: Path, tmp_path: Path) -> None:
    knobs: dict[str, Any] = {
        "precision": "fp32",
        "optimisation__learning_rate": 0.3,
        "optimisation__max_steps": 30,
        "evaluation__eval_steps": 1,
        "early_stopping__early_stopping_patience": 2,
    }
    whole = tiny.train(tmp_path / "whole", model, **knobs, **SAVED)
    last = max(event.step for event in tiny.events_of(whole, Checkpointed))
    again = resumed_runs.interrupt_run(whole, last - 1, tmp_path / "again")

    execute_run(again.root, StopHandler())

    assert resumed_runs.result(again) == resumed_runs.result(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


def test_best_checkpoint_is_kept_beside_newest(model: Path, tmp_path: Path) -> None:
    run = tiny.train(
        tmp_path / "run",
        model,
        optimisation__learning_rate=1.0,
        optimisation__max_steps=6,
        evaluation__eval_steps=1,
        checkpoints__save_steps=1,
        checkpoints__save_total_limit=1,
        checkpoints__load_best_model_at_end=True,
        checkpoints__keep_after_success=True,
    )
    _untrained, *measured = tiny.metric_values(run, "eval_loss")
    best = measured.index(min(measured)) + 1

    assert best < 6
    assert resumed_runs.checkpoints(run) == [f"checkpoint-{best}", "checkpoint-6"]
    assert tiny.events_of(run, Finished)[0].metrics["eval_loss"] == min(measured)


def test_only_newest_checkpoints_are_kept_and_none_after_success(
    model: Path, tmp_path: Path
) -> None:
    kept: dict[str, Any] = {"checkpoints__save_steps": 1, "optimisation__max_steps": 4}
    run = tiny.train(tmp_path / "a", model, **kept, checkpoints__keep_after_success=True)
    gone = tiny.train(tmp_path / "b", model, **kept)

    assert resumed_runs.checkpoints(run) == ["checkpoint-3", "checkpoint-4"]
    assert not gone.checkpoints.exists()


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def reword(file: Path) -> None:
    """Change what it says, and leave it readable."""
    file.write_text(file.read_text(encoding="utf-8").replace(": ", ":  ", 1).replace("a", "b", 1))


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("name", "harm", "why"),
    [
        ("weights.safetensors", flip, "has changed since it was written"),
        ("optimizer.pt", cut_short, "has a different length than when it was written"),
        ("optimizer.pt", Path.unlink, "is missing"),
        ("MANIFEST.json", reword, "has changed since it was written"),
    ],
    ids=["a flipped bit", "a truncated file", "a missing optimizer", "a changed manifest"],
)
def test_resume_skips_broken_checkpoint_and_uses_previous(
    name: str,
    harm: Callable[[Path], None],
    why: str,
    model: Path,
    tmp_path: Path,
) -> None:
    whole = tiny.train(tmp_path / "whole", model, **SAVED)
    again = resumed_runs.interrupt_run(whole, 2, tmp_path / "again")
    harm(again.checkpoints / "checkpoint-2" / name)

    execute_run(again.root, StopHandler())

    (alarm,) = tiny.events_of(again, AlarmRaised)
    assert alarm.message == f"The checkpoint of step 2 cannot be used: {name} {why}."
    assert resumed_runs.resumed_at(again) == [(2, 1)]
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)
    assert resumed_runs.checkpoints(again)[0] == "broken-checkpoint-2"


def test_full_disk_raises_one_alarm_and_run_finishes(
    model: Path, small: Path, tmp_path: Path
) -> None:
    run = tiny.write_run(tmp_path / "run", model, precision="fp32", **SAVED)
    run.checkpoints.symlink_to(small, target_is_directory=True)

    assert execute_run(run.root, StopHandler()) == 0

    (alarm,) = tiny.events_of(run, AlarmRaised)
    assert (alarm.code, alarm.step) == ("not_saved", 2)
    assert alarm.message.startswith(
        "Step 2 could not be saved. The checkpoint needs 0.5 MB, but only 0.5 MB are "
    )
    assert [event.step for event in tiny.events_of(run, Checkpointed)] == [1]
    assert checksums.verify_folder(run.checkpoints / "checkpoint-1").step == 1
    assert isinstance(tiny.last_event(run), Finished)


def test_resume_ignores_checkpoints_of_other_recipe(model: Path, tmp_path: Path) -> None:
    whole = tiny.train(tmp_path / "whole", model, **SAVED)
    again = resumed_runs.interrupt_run(whole, 2, tmp_path / "again")
    text = again.recipe.read_text(encoding="utf-8")
    again.recipe.write_text(text.replace("seed: 42", "seed: 43"), encoding="utf-8")

    execute_run(again.root, StopHandler())

    assert resumed_runs.resumed_at(again) == [(2, 0)]
    assert {alarm.message.partition(": ")[2] for alarm in tiny.events_of(again, AlarmRaised)} == {
        "it was written by a different recipe."
    }


def test_run_resumes_with_smaller_batches(model: Path, tmp_path: Path) -> None:
    """As after memory ran out: half the batch, twice as many to an update, nothing lost."""
    wide = {
        "optimisation__max_steps": 12,
        "optimisation__per_device_train_batch_size": 6,
        "optimisation__gradient_accumulation_steps": 1,
        "evaluation__logging_steps": 1,
    }
    whole = tiny.train(tmp_path / "whole", model, **wide, **SAVED)
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")
    values = yaml.load(again.recipe.read_text(encoding="utf-8"))
    recipe = RECIPE_ADAPTER.validate_python(values, strict=False)
    shrunk = RECIPE_ADAPTER.validate_python(
        merge(recipe.model_dump(), attempts.smaller_batch(recipe))
    )
    again.recipe.write_text(yaml.dump(shrunk), encoding="utf-8")

    assert execute_run(again.root, StopHandler()) == 0

    one, other = (resumed_runs.curve(run) for run in (again, whole))
    assert resumed_runs.resumed_at(again) == [(2, 7)]
    assert (
        shrunk.optimisation.per_device_train_batch_size,
        tiny.events_of(again, AlarmRaised),
    ) == (
        3,
        [],
    )
    assert [one[step]["tokens"] for step in range(1, 13)] == [
        other[step]["tokens"] for step in range(1, 13)
    ]
    assert [one[step]["loss"] for step in range(1, 13)] == pytest.approx(
        [other[step]["loss"] for step in range(1, 13)], rel=1e-3
    )


def test_restarted_run_ignores_old_checkpoints(model: Path, tmp_path: Path) -> None:
    run = tiny.train(tmp_path / "run", model, **SAVED)

    execute_run(run.root, StopHandler())

    assert resumed_runs.resumed_at(run) == []
    assert [event.step for event in tiny.events_of(run, Checkpointed)] == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize(("asked", "kind"), [("pause", "paused"), ("keep", "stopped")])
def test_run_stopped_before_start_leaves_no_artifacts(
    asked: RunCommand, kind: str, model: Path, tmp_path: Path
) -> None:
    run = tiny.write_run(tmp_path / "run", model)
    stop = StopHandler()
    stop.requested = asked

    assert execute_run(run.root, stop) == 0
    assert [event.kind for event in run.events.read()[0]] == [kind]
    assert tiny.last_event(run).model_dump()["step"] == 0
    assert not run.artifacts.exists()
