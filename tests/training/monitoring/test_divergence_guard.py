"""The guard: a run whose numbers break ends in words, and never passes for a success."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from studio.errors import TrainingError
from studio.protocols.events import AlarmRaised, Checkpointed, Failed, MetricsLogged
from studio.protocols.run_dir import RunDir
from studio.runner import training_run
from studio.training.monitoring.divergence_guard import DivergenceGuard, LoggedStep
from studio.training.stop_handler import StopHandler
from tests.training import tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

BAD = "model.layers.1.mlp.down_proj"


@pytest.fixture(scope="module")
def hopeless(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model with a layer too strong for any format."""
    folder = tmp_path_factory.mktemp("hopeless") / "model"
    strong = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        strong.get_submodule("model.layers.1.mlp.up_proj").weight.mul_(1e20)
        strong.get_submodule(BAD).weight.mul_(1e30)
    strong.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


def ended(run: RunDir) -> tuple[str, int]:
    """Return how a run has failed, and at which step."""
    return tiny.events_of(run, Failed)[0].code, tiny.events_of(run, MetricsLogged)[-1].step


def codes(run: RunDir) -> list[str]:
    return [alarm.code for alarm in tiny.events_of(run, AlarmRaised)]


def made_guard(model: Path, folder: Path, **changes: object) -> DivergenceGuard:
    run = tiny.write_run(folder, model, **changes)
    guard: DivergenceGuard = training_run.prepare(
        run, run.events.append, StopHandler()
    ).trainer.guard
    return guard


def reading(**metrics: float) -> LoggedStep:
    usual = {"loss": 2.0, "grad_norm": 1.0, "learning_rate": 0.01}
    return LoggedStep(step=1, metrics=usual | metrics, nonfinite_losses=0, health=None)


@pytest.mark.smoke
def test_run_with_nonfinite_loss_is_ended(hopeless: Path, tmp_path: Path) -> None:
    run = tiny.train(tmp_path / "run", hopeless, optimisation__max_steps=40)

    assert ended(run) == ("non_finite", 10)
    assert tiny.events_of(run, Failed)[0].message == (
        f"The loss has been NaN or infinite for 10 steps; it began in {BAD}."
    )
    assert not run.artifacts.exists()


def test_run_with_nonfinite_weights_fails_even_with_warn_guard(
    hopeless: Path, tmp_path: Path
) -> None:
    run = tiny.train(tmp_path / "run", hopeless, numerics__guard="warn")

    assert ended(run) == ("non_finite", 3)
    assert not run.artifacts.exists()


def test_warn_guard_lets_run_continue(hopeless: Path, tmp_path: Path) -> None:
    run = tiny.train(tmp_path / "run", hopeless, numerics__guard="warn", optimisation__max_steps=12)

    assert tiny.events_of(run, MetricsLogged)[-1].step == 12
    assert codes(run) == ["activations_overflow", "non_finite"]


def test_rollback_keeps_last_good_weights(hopeless: Path, tmp_path: Path) -> None:
    run = tiny.train(
        tmp_path / "run", hopeless, numerics__guard="rollback", optimisation__max_steps=40
    )

    kept = AutoModelForCausalLM.from_pretrained(run.artifacts / "last-good")
    assert ended(run) == ("non_finite", 10)
    assert all(weight.isfinite().all() for weight in kept.parameters())
    assert [path.name for path in run.artifacts.iterdir()] == ["last-good"]


def test_rollback_model_card_warns_that_run_failed(hopeless: Path, tmp_path: Path) -> None:
    run = tiny.train(
        tmp_path / "run",
        hopeless,
        numerics__guard="rollback",
        adapter__kind="lora",
        optimisation__max_steps=40,
    )

    card = (run.artifacts / "last-good" / "README.md").read_text(encoding="utf-8")
    assert card.splitlines()[2] == (
        "This run failed at step 10, so these weights are not a result. The loss has been NaN or "
        f"infinite for 10 steps; it began in {BAD}."
    )


def test_step_with_nan_loss_does_not_update_weights(model: Path, tmp_path: Path) -> None:
    run = tiny.write_run(tmp_path / "run", model, optimisation__max_steps=4)
    made = training_run.prepare(run, run.events.append, StopHandler())
    compute = made.trainer.compute_loss

    def breaking(*args: Any, **given: Any) -> torch.Tensor:  # noqa: ANN401 -- upstream's own
        loss: torch.Tensor = compute(*args, **given)
        return loss * (math.nan if made.trainer.state.global_step == 1 else 1.0)

    made.trainer.compute_loss = breaking

    made.trainer.train()

    assert [math.isfinite(norm) for norm in tiny.metric_values(run, "grad_norm")] == [
        True,
        False,
        True,
        True,
    ]
    assert all(weight.isfinite().all() for weight in made.trainer.model.parameters())
    assert tiny.metric_values(run, "skipped_steps") == [1, 1, 1]


def test_persistently_lost_updates_end_run(model: Path, tmp_path: Path) -> None:
    run = tiny.train(
        tmp_path / "run",
        model,
        precision="bf16_pure",
        optimisation__learning_rate=1e-6,
        optimisation__lr_scheduler_type="constant",
        optimisation__max_steps=30,
    )

    assert ended(run) == ("updates_lost", 11)
    assert codes(run) == ["updates_lost"]


def test_collapsed_loss_scale_ends_run(model: Path, tmp_path: Path) -> None:
    guard = made_guard(model, tmp_path / "run", precision="fp16")

    told = [alarm.code for alarm in guard.check(reading(loss_scale=0.5, skipped_steps=17))]

    assert told == ["loss_scale_collapsed"]
    with pytest.raises(TrainingError, match="fallen below 1"):
        guard.raise_if_ended()


def test_memorised_data_raises_alarm_but_does_not_fail(model: Path, tmp_path: Path) -> None:
    guard = made_guard(model, tmp_path / "run")

    steps = [reading(loss=0.0, mean_token_accuracy=1.0)] * 12
    told = [alarm.code for step in steps for alarm in guard.check(step)]
    guard.raise_if_ended()

    assert told == ["zero_loss"]


def test_zero_loss_with_zero_accuracy_ends_run(model: Path, tmp_path: Path) -> None:
    guard = made_guard(model, tmp_path / "run")

    steps = [reading(loss=0.0, mean_token_accuracy=0.0)] * 12
    told = [alarm.code for step in steps for alarm in guard.check(step)]

    assert told == ["zero_loss"]
    with pytest.raises(TrainingError, match="the model learns nothing"):
        guard.raise_if_ended()


def test_run_ended_by_guard_leaves_checkpoint(model: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "precision": "bf16_pure",
        "optimisation__lr_scheduler_type": "constant",
        "optimisation__max_steps": 30,
    }
    run = tiny.train(tmp_path / "run", model, **changes, optimisation__learning_rate=1e-6)

    saved = [event.step for event in tiny.events_of(run, Checkpointed)]
    assert (ended(run), saved) == (("updates_lost", 11), [11])
    assert [path.name for path in run.checkpoints.iterdir()] == ["checkpoint-11"]
