"""Precision modes are what they say: measured in the run, refused when they would be less."""

from pathlib import Path

import pytest
import torch

from studio.errors import TrainingError
from studio.protocols.events import Finished, Started
from studio.protocols.run_dir import RunDir
from studio.recipe.precision import PRECISIONS, PrecisionName
from studio.runner import training_run
from studio.training.stop_handler import StopHandler
from tests.training import tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

MODES: list[PrecisionName] = [mode.name for mode in PRECISIONS.values() if not mode.is_gpu_only]


@pytest.fixture(scope="module")
def runs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[PrecisionName, RunDir]:
    """Train the same run once in each mode."""
    root = tmp_path_factory.mktemp("modes")
    return {mode: tiny.train(root / mode, model, precision=mode) for mode in MODES}


def test_modes_with_different_formats_give_different_losses(
    runs: dict[PrecisionName, RunDir],
) -> None:
    first = {mode: tiny.metric_values(run, "loss")[0] for mode, run in runs.items()}

    rows = [PRECISIONS[mode] for mode in MODES]
    kinds = {(row.weights, row.matmul, row.compute) for row in rows}
    assert len(set(first.values())) == len(kinds)
    assert list(first.values()) == pytest.approx([first["fp32"]] * len(MODES), rel=1e-2)


@pytest.mark.smoke
@pytest.mark.parametrize("mode", MODES)
def test_resolved_formats_match_precision_table(
    runs: dict[PrecisionName, RunDir], mode: PrecisionName
) -> None:
    resolved = tiny.events_of(runs[mode], Started)[0].resolved
    row = PRECISIONS[mode]

    assert (resolved["weights"], resolved["compute"]) == (row.weights, row.compute)
    assert (resolved["gradients"], resolved["scaler"]) == (row.gradients, row.scaler)
    assert resolved["optimizer_states"] == row.optimizer_states


@pytest.mark.parametrize("mode", MODES)
def test_audit_matches_plan(runs: dict[PrecisionName, RunDir], mode: PrecisionName) -> None:
    resolved, row = tiny.events_of(runs[mode], Started)[0].resolved, PRECISIONS[mode]
    plan, audit = resolved["plan"], resolved["audit"]

    assert {name: audit[name] for name in plan} == plan
    assert (audit["matmul"], audit["optimizer"]) == (row.matmul, row.optimizer)
    assert audit["master"] == (row.master or "none")


def test_loss_is_scaled_only_in_fp16(runs: dict[PrecisionName, RunDir]) -> None:
    scales = {mode: tiny.metric_values(run, "loss_scale") for mode, run in runs.items()}

    assert scales == {mode: [] for mode in MODES} | {"fp16": [65536.0] * 3}


def test_fp16_run_skips_no_steps(runs: dict[PrecisionName, RunDir]) -> None:
    assert tiny.events_of(runs["fp16"], Finished)[0].metrics["skipped_steps"] == 0


def test_skipped_steps_are_counted_and_do_not_advance_schedule(model: Path, tmp_path: Path) -> None:
    run = tiny.write_run(
        tmp_path / "run",
        model,
        precision="fp16",
        optimisation__lr_scheduler_type="linear",
        optimisation__max_steps=6,
    )
    made = training_run.prepare(run, run.events.append, StopHandler())
    # So large that the first gradients overflow, as they do when training goes astray.
    made.trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)

    made.trainer.train()

    # Every step overflows, and the scale halves each time, until there are no steps left.
    assert tiny.metric_values(run, "skipped_steps") == [1, 2, 3, 4, 5, 6]
    assert tiny.metric_values(run, "loss_scale") == [2.0**power for power in range(39, 33, -1)]
    assert tiny.metric_values(run, "learning_rate") == [0.01] * 6


@pytest.mark.smoke
def test_silent_precision_fallback_is_rejected(model: Path, tmp_path: Path) -> None:
    run = tiny.write_run(tmp_path / "run", model, precision="fp16")
    made = training_run.prepare(run, run.events.append, StopHandler())
    made.trainer.accelerator.native_amp = False

    with pytest.raises(TrainingError, match="The precision float16 mixed was requested") as caught:
        made.trainer.train()

    assert caught.value.code == "precision_refused"


def test_weights_missing_from_optimizer_are_rejected(model: Path, tmp_path: Path) -> None:
    run = tiny.write_run(tmp_path / "run", model)
    made = training_run.prepare(run, run.events.append, StopHandler())
    made.trainer.create_optimizer()
    made.trainer.optimizer.param_groups[0]["params"].pop()

    with pytest.raises(TrainingError, match="would not be trained"):
        made.trainer.train()
