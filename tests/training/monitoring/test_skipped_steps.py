"""Steps whose loss or gradient is no number: shown where they are, counted, and never a success."""

import math
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPTNeoXConfig

from studio.protocols.events import AlarmRaised, Checkpointed, Failed, Finished, MetricsLogged
from studio.protocols.run_dir import JobSpec, RunDir
from studio.recipe.precision import PrecisionName
from studio.runner import training_run
from studio.runner.execution import execute_run
from studio.training.stop_handler import StopHandler
from tests.training import tiny
from tests.training.checkpoints import resumed_runs

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

ROWS = 4
"""To a step."""

BROKEN = "~"
"""A text with this has a loss of NaN: its embedding is finite, and layer norm overflows on it."""

STILL: dict[str, Any] = {
    "optimisation__train_sampling_strategy": "sequential",
    "optimisation__per_device_train_batch_size": ROWS,
}
LINEAR: dict[str, Any] = {"optimisation__lr_scheduler_type": "linear"}


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fragile") / "model"
    config = GPTNeoXConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
    )
    tiny.write_model(folder, config)
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        embeddings = model.get_input_embeddings().weight
        embeddings[tiny.tokenizer().convert_tokens_to_ids(BROKEN)] = 3e38
    model.save_pretrained(folder)
    return folder


def write_run(root: Path, model: Path, broken: Collection[int], **changes: Any) -> RunDir:  # noqa: ANN401 -- any knob
    """Lay out a run whose steps of these numbers have a row that breaks them."""
    steps = changes.setdefault("optimisation__max_steps", 8)
    size = ROWS * changes.get("optimisation__gradient_accumulation_steps", 1)
    run = tiny.write_run(root, model, **(STILL | changes))
    sums = tiny.rows()
    rows = [sums[number % len(sums)] for number in range(steps * size)]
    for step in broken:
        question, answer = rows[step * size - 1]["messages"]
        odd = question | {"content": question["content"] + BROKEN}
        rows[step * size - 1] = {"messages": [odd, answer]}
    spec = JobSpec.read(run)
    tiny.write_rows(spec.train, rows)
    validation = tiny.write_rows(root / "validation.jsonl", sums[:4])
    apart = spec.model_copy(update={"validation": validation})
    run.job.write_text(apart.model_dump_json(), encoding="utf-8")
    return run


def train(root: Path, model: Path, broken: Collection[int], **changes: Any) -> RunDir:  # noqa: ANN401 -- any knob
    run = write_run(root, model, broken, **changes)
    execute_run(run.root, StopHandler())
    return run


def losses(run: RunDir) -> dict[int, float]:
    points = [event for event in tiny.events_of(run, MetricsLogged) if "loss" in event.metrics]
    return {event.step: event.metrics["loss"] for event in points}


def failure(run: RunDir) -> Failed:
    return tiny.events_of(run, Failed)[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "fp32"},
        {"precision": "fp16"},
        {"precision": "bf16", "adapter__kind": "lora"},
        {"precision": "fp32", "optimisation__gradient_accumulation_steps": 2},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_nan_loss_affects_only_its_logging_window(
    changes: dict[str, Any], fragile: Path, tmp_path: Path
) -> None:
    still = {**changes, "optimisation__learning_rate": 1e-12, "evaluation__logging_steps": 2}
    run = train(tmp_path / "run", fragile, [3], **still)
    sound = train(tmp_path / "sound", fragile, [], **still)

    shown, expected = losses(run), losses(sound)
    assert math.isnan(shown.pop(4)), shown
    expected.pop(4)
    # Without a learning rate, the loss of a window is that of its rows.
    assert shown == pytest.approx(expected, rel=1e-3)
    assert math.isfinite(tiny.events_of(run, Finished)[0].metrics["loss"])
    assert all(map(math.isfinite, tiny.metric_values(run, "eval_loss")))


def test_gradient_norm_is_nonfinite_only_at_broken_step(fragile: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", fragile, [3])

    finite = [math.isfinite(norm) for norm in tiny.metric_values(run, "grad_norm")]
    assert finite == [True, True, False, True, True, True, True, True]


@pytest.mark.parametrize("step", [4, 6], ids=["inside the window", "after it"])
def test_run_resumed_after_nan_equals_uninterrupted_run(
    step: int, fragile: Path, tmp_path: Path
) -> None:
    knobs = {**resumed_runs.SAVED, "evaluation__logging_steps": 3}
    whole = train(tmp_path / "whole", fragile, [4], **knobs)
    again = resumed_runs.interrupt_run(whole, step, tmp_path / "again")
    execute_run(again.root, StopHandler())

    # Compared as text: NaN equals nothing.
    assert str(resumed_runs.curve(again)) == str(resumed_runs.curve(whole))
    assert resumed_runs.result(again) == resumed_runs.result(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)
    shown = losses(again)
    assert [number for number, loss in shown.items() if math.isnan(loss)] == [6]


MODES: list[tuple[PrecisionName, dict[str, Any]]] = [
    ("fp32", {}),
    ("fp16", {}),
    ("fp16", {"numerics__guard": "warn"}),
    ("bf16", {}),
    ("bf16", {"adapter__kind": "lora"}),
    ("bf16_pure", {}),
    ("bf16_stochastic", {}),
    ("bf16_dual", {}),
    ("fp8", {}),
    ("fp32", {"optimisation__gradient_accumulation_steps": 2}),
    ("fp16", {"optimisation__gradient_accumulation_steps": 2}),
]


@pytest.mark.parametrize(("mode", "changes"), MODES)
def test_learning_rate_schedule_does_not_advance_on_skipped_step(
    mode: PrecisionName, changes: dict[str, Any], fragile: Path, tmp_path: Path
) -> None:
    run = train(tmp_path / "run", fragile, [3], precision=mode, **LINEAR, **changes)

    rates = [round(rate * 800) for rate in tiny.metric_values(run, "learning_rate")]
    assert rates == [8, 7, 6, 6, 5, 4, 3, 2]
    assert tiny.events_of(run, Finished)[0].metrics["skipped_steps"] == 1


def test_warmup_does_not_advance_on_skipped_step(fragile: Path, tmp_path: Path) -> None:
    run = train(
        tmp_path / "run",
        fragile,
        [2],
        optimisation__lr_scheduler_type="constant_with_warmup",
        optimisation__warmup_steps=4,
    )

    rates = [round(rate * 400) for rate in tiny.metric_values(run, "learning_rate")]
    assert rates == [0, 1, 1, 2, 3, 4, 4, 4]


def test_nan_step_is_skipped_without_gradient_clipping(fragile: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", fragile, [3], **LINEAR)
    made = training_run.prepare(run, run.events.append, StopHandler())
    made.trainer.args.max_grad_norm = 0

    made.trainer.train()

    rates = tiny.metric_values(run, "learning_rate")
    assert [before == after for before, after in pairwise(rates)].index(True) == 2
    assert all(weight.isfinite().all() for weight in made.trainer.model.parameters())
    assert made.trainer.guard.skipped_steps == 1


def test_first_skipped_step_raises_one_alarm(fragile: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", fragile, [3, 6], numerics__health=False)

    alarm = tiny.events_of(run, AlarmRaised)[0]
    assert (alarm.code, alarm.message) == (
        "step_left_out",
        "Step 3 was skipped: its loss or a gradient was NaN or infinite.",
    )
    assert len(tiny.events_of(run, AlarmRaised)) == 1


@pytest.mark.parametrize(
    ("mode", "guard"), [("fp32", "stop"), ("bf16", "rollback"), ("fp16", "warn")]
)
def test_run_that_skipped_most_steps_fails(
    mode: PrecisionName, guard: str, fragile: Path, tmp_path: Path
) -> None:
    broken = [1, 3, 4, 6, 8]
    run = train(tmp_path / "run", fragile, broken, precision=mode, numerics__guard=guard)

    ended = failure(run)
    assert (ended.code, tiny.events_of(run, MetricsLogged)[-1].step) == ("steps_left_out", 8)
    assert ended.message.startswith("Only 3 of 8 steps updated the weights;")
    assert ended.hint
    kept = [path.name for path in run.artifacts.glob("*")]
    assert kept == (["last-good"] if guard == "rollback" else [])


def test_run_succeeds_when_half_its_steps_update(fragile: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", fragile, [1, 3, 5, 7])

    assert tiny.events_of(run, Finished)[0].metrics["skipped_steps"] == 4


@pytest.mark.parametrize("guard", ["stop", "rollback"])
@pytest.mark.parametrize("logging_steps", [1, 50])
def test_run_that_keeps_skipping_steps_is_ended(
    logging_steps: int, guard: str, fragile: Path, tmp_path: Path
) -> None:
    broken = [step for step in range(3, 61) if step % 3]
    run = train(
        tmp_path / "run",
        fragile,
        broken,
        numerics__guard=guard,
        optimisation__max_steps=60,
        evaluation__logging_steps=logging_steps,
    )

    # Of the steps up to the 17th, ten were left out: 4, 5, 7, 8, 10, 11, 13, 14, 16 and 17.
    assert (failure(run).code, tiny.events_of(run, MetricsLogged)[-1].step) == (
        "steps_left_out",
        17,
    )
    assert failure(run).message.startswith("10 of the last 20 steps were skipped")
    assert [event.step for event in tiny.events_of(run, Checkpointed)] == [17]
    assert (run.artifacts / "last-good").is_dir() == (guard == "rollback")


def test_float16_run_fails_when_every_gradient_overflows(model: Path, tmp_path: Path) -> None:
    """The loss is finite at every step, and no gradient is: each is over 65,504 once scaled."""
    steep = AutoModelForCausalLM.from_pretrained(model)
    steep.config.rms_norm_eps = 1e-20
    with torch.no_grad():
        for name, weight in steep.named_parameters():
            if "embed" in name or "o_proj" in name or "down_proj" in name:
                weight.mul_(1e-6)
    steep.save_pretrained(tmp_path / "model")
    tiny.tokenizer().save_pretrained(tmp_path / "model")

    run = tiny.train(
        tmp_path / "run", tmp_path / "model", precision="fp16", optimisation__max_steps=12
    )

    assert all(map(math.isfinite, tiny.metric_values(run, "loss")))
    assert tiny.metric_values(run, "skipped_steps")[-1] == 12
    assert [alarm.code for alarm in tiny.events_of(run, AlarmRaised)] == ["steps_left_out"]
    assert failure(run).code == "steps_left_out"
    assert failure(run).message.startswith("Only 0 of 12 steps updated the weights;")
