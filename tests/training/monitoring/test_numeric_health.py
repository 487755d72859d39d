"""Numeric health: each trouble is provoked and seen, and a healthy run is not disturbed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from studio.protocols.events import AlarmRaised, MetricsLogged
from studio.protocols.run_dir import RunDir
from studio.recipe.precision import PRECISIONS, PrecisionName
from studio.runner import training_run
from studio.training.stop_handler import StopHandler
from tests.training import tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

SIGNALS = [
    "activation_max",
    "grad_underflow_share",
    "logit_max",
    "lost_update_share",
    "nonfinite_grads",
    "nonfinite_losses",
    "update_ratio",
]
BAD = "model.layers.1.mlp.down_proj"
HEALTHY = [
    (mode.name, adapter)
    for mode in PRECISIONS.values()
    for adapter in ("full", "lora")
    if not mode.is_gpu_only and (adapter == "full" or not mode.is_for_all_weights)
]
"""Every mode, in full and beside a frozen model, but for what is refused before the start."""


@pytest.fixture(scope="module")
def exploding(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model with a layer whose output float16 cannot hold."""
    return strengthened(model, tmp_path_factory.mktemp("exploding") / "model", 17_000.0)


def strengthened(model: Path, folder: Path, factor: float) -> Path:
    strong = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        strong.get_submodule(BAD).weight *= factor
        strong.get_submodule("model.layers.1.mlp.up_proj").weight *= factor
    strong.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


def looks(run: RunDir) -> list[int]:
    """Return the steps at which a look was taken."""
    return [e.step for e in tiny.events_of(run, MetricsLogged) if "nonfinite_grads" in e.metrics]


def alarms(run: RunDir) -> list[str]:
    return [alarm.code for alarm in tiny.events_of(run, AlarmRaised)]


@pytest.mark.parametrize(("mode", "adapter"), HEALTHY)
def test_healthy_run_is_measured_without_alarms(
    model: Path, tmp_path: Path, mode: PrecisionName, adapter: str
) -> None:
    run = tiny.train(
        tmp_path / "run",
        model,
        precision=mode,
        adapter__kind=adapter,
        optimisation__max_steps=12,
    )

    first = tiny.events_of(run, MetricsLogged)[1].metrics
    assert sorted(set(first) & set(SIGNALS)) == SIGNALS
    assert (looks(run), alarms(run), tiny.last_event(run).kind) == ([1, 11], [], "finished")
    assert first["grad_underflow_share"] < 0.01
    # Where 16-bit weights are rounded, some share is lost, or kept elsewhere: that is their way.
    assert first["lost_update_share"] < (0.01 if PRECISIONS[mode].rounding is None else 1)


@pytest.mark.parametrize("mode", ["bf16", "fp16"])
def test_health_measurement_does_not_change_losses(
    model: Path, tmp_path: Path, mode: PrecisionName
) -> None:
    changes: dict[str, Any] = {"precision": mode, "optimisation__max_steps": 12}
    with_health = tiny.train(tmp_path / "with", model, **changes)
    without = tiny.train(tmp_path / "without", model, **changes, numerics__health=False)

    assert looks(without) == []
    assert tiny.metric_values(with_health, "loss") == tiny.metric_values(without, "loss")


def test_health_is_measured_only_on_logging_steps(model: Path, tmp_path: Path) -> None:
    run = tiny.train(
        tmp_path / "run", model, optimisation__max_steps=24, evaluation__logging_steps=4
    )

    assert looks(run) == [4, 16]


def test_logit_max_scales_with_output_head(model: Path, tmp_path: Path) -> None:
    """A head made a hundred times as strong scores a hundred times as high."""
    strong = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        strong.lm_head.weight.mul_(100)
    strong.save_pretrained(tmp_path / "model")
    tiny.tokenizer().save_pretrained(tmp_path / "model")

    usual = tiny.train(tmp_path / "usual", model, optimisation__max_steps=1)
    run = tiny.train(tmp_path / "run", tmp_path / "model", optimisation__max_steps=1)

    high, low = tiny.metric_values(run, "logit_max")[0], tiny.metric_values(usual, "logit_max")[0]
    assert high == pytest.approx(100 * low, rel=1e-3)


def test_no_forward_hooks_remain_after_training(model: Path, tmp_path: Path) -> None:
    run = tiny.write_run(tmp_path / "run", model, optimisation__max_steps=2)
    made = training_run.prepare(run, run.events.append, StopHandler())

    made.trainer.train()

    hooks = [hook for one in made.trainer.model.modules() for hook in one._forward_hooks]
    assert hooks == []


def test_overflow_alarm_names_module(exploding: Path, tmp_path: Path) -> None:
    run = tiny.train(tmp_path / "run", exploding, precision="fp16")

    first = tiny.events_of(run, AlarmRaised)[0]
    assert (first.code, first.step, first.module) == ("activations_overflow", 1, BAD)
    assert tiny.metric_values(run, "activation_max")[0] == float("inf")
    assert tiny.metric_values(run, "nonfinite_losses")[0] == 1


def test_collapsing_loss_scale_raises_alarm(exploding: Path, tmp_path: Path) -> None:
    run = tiny.train(
        tmp_path / "run",
        exploding,
        precision="fp16",
        numerics__guard="warn",
        optimisation__max_steps=24,
    )

    assert tiny.metric_values(run, "loss_scale")[-1] == 2.0 ** (16 - 24)
    assert (
        tiny.metric_values(run, "skipped_steps")[-1]
        == tiny.metric_values(run, "nonfinite_losses")[-1]
        == 24
    )
    assert alarms(run) == ["activations_overflow", "non_finite", "loss_scale_collapsed"]


def test_bfloat16_trains_where_float16_overflows(exploding: Path, tmp_path: Path) -> None:
    run = tiny.train(tmp_path / "run", exploding, precision="bf16")

    assert (alarms(run), tiny.last_event(run).kind) == ([], "finished")
    assert tiny.metric_values(run, "activation_max")[0] > 65504


def test_layer_near_float16_limit_is_named(model: Path, tmp_path: Path) -> None:
    strong = strengthened(model, tmp_path / "model", 2_200.0)
    run = tiny.train(tmp_path / "run", strong, precision="fp16")

    assert [(alarm.code, alarm.module) for alarm in tiny.events_of(run, AlarmRaised)] == [
        ("little_headroom", BAD)
    ]


@pytest.mark.parametrize(
    ("scale", "is_lost", "expected"),
    [(1.0, True, ["gradients_underflow"]), (2.0**16, False, [])],
    ids=["unscaled", "scaled"],
)
def test_gradient_underflow_is_detected(
    *, model: Path, tmp_path: Path, scale: float, is_lost: bool, expected: list[str]
) -> None:
    run = tiny.write_run(tmp_path / "run", model, precision="fp16")
    made = training_run.prepare(run, run.events.append, StopHandler())
    made.trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    compute = made.trainer.compute_loss
    made.trainer.compute_loss = lambda *args, **given: compute(*args, **given) * 1e-5

    made.trainer.train()

    share = tiny.metric_values(run, "grad_underflow_share")[0]
    assert (share > 0.5, share < 0.01) == (is_lost, not is_lost)
    assert alarms(run) == expected


def test_skipped_step_is_not_counted_as_lost_update(model: Path, tmp_path: Path) -> None:
    run = tiny.write_run(tmp_path / "run", model, precision="fp16")
    made = training_run.prepare(run, run.events.append, StopHandler())
    made.trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)

    made.trainer.train()

    first = tiny.events_of(run, MetricsLogged)[1].metrics
    assert (first["skipped_steps"], first["nonfinite_grads"] > 0) == (1, True)
    assert set(first) & {"lost_update_share", "update_ratio"} == set()
    # The scaler searches for its scale in this way: that is no trouble.
    assert alarms(run) == []


def test_updates_lost_to_bfloat16_rounding_raise_alarm(model: Path, tmp_path: Path) -> None:
    run = tiny.train(
        tmp_path / "run", model, precision="bf16_pure", optimisation__learning_rate=1e-5
    )

    assert tiny.metric_values(run, "lost_update_share")[0] > 0.5
    assert alarms(run) == ["updates_lost"]


@pytest.mark.parametrize("mode", ["bf16", "bf16_dual", "bf16_stochastic", "bf16_kahan"])
def test_small_updates_raise_no_alarm_in_modes_that_keep_them(
    model: Path, tmp_path: Path, mode: PrecisionName
) -> None:
    run = tiny.train(
        tmp_path / "run",
        model,
        precision=mode,
        optimisation__learning_rate=1e-5,
        optimisation__max_steps=12,
    )

    assert (alarms(run), tiny.last_event(run).kind) == ([], "finished")


def test_float32_weights_keep_small_updates(model: Path, tmp_path: Path) -> None:
    run = tiny.train(tmp_path / "run", model, precision="bf16", optimisation__learning_rate=1e-5)

    assert tiny.metric_values(run, "lost_update_share")[0] < 0.01


def test_lost_updates_are_not_measured_at_zero_learning_rate(model: Path, tmp_path: Path) -> None:
    run = tiny.train(tmp_path / "run", model, optimisation__warmup_steps=2)

    first = tiny.events_of(run, MetricsLogged)[1].metrics
    assert set(first) & {"lost_update_share", "update_ratio"} == set()
