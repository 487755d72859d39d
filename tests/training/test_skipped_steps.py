"""A loss or gradient that is no number is shown where it is, and nowhere else."""

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPTNeoXConfig

from studio.events import Finished, Progressed
from studio.rundir import JobSpec, RunDir
from studio.runner.session import execute
from studio.training.stopping import Stop
from tests.training import resumed, tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

ROWS = 4
"""To a step."""

BROKEN = "~"
"""A text with this has a loss of NaN: its embedding is finite, and layer norm overflows on it."""

STILL: dict[str, Any] = {
    "optimisation__train_sampling_strategy": "sequential",
    "optimisation__per_device_train_batch_size": ROWS,
}


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
    spec = JobSpec.model_validate_json(run.job.read_text(encoding="utf-8"))
    tiny.write_rows(spec.train, rows)
    validation = tiny.write_rows(root / "validation.jsonl", sums[:4])
    apart = spec.model_copy(update={"validation": validation})
    run.job.write_text(apart.model_dump_json(), encoding="utf-8")
    return run


def train(root: Path, model: Path, broken: Collection[int], **changes: Any) -> RunDir:  # noqa: ANN401 -- any knob
    run = write_run(root, model, broken, **changes)
    execute(run.root, Stop())
    return run


def losses(run: RunDir) -> dict[int, float]:
    points = [event for event in tiny.said(run, Progressed) if "loss" in event.metrics]
    return {event.step: event.metrics["loss"] for event in points}


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
def test_a_nan_loss_is_shown_in_its_own_window_alone(
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
    assert math.isfinite(tiny.said(run, Finished)[0].metrics["loss"])
    assert all(map(math.isfinite, tiny.series(run, "eval_loss")))


def test_the_gradient_norm_breaks_at_its_own_step_alone(fragile: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", fragile, [3])

    finite = [math.isfinite(norm) for norm in tiny.series(run, "grad_norm")]
    assert finite == [True, True, False, True, True, True, True, True]


@pytest.mark.parametrize("step", [4, 6], ids=["inside the window", "after it"])
def test_a_run_resumed_after_a_nan_goes_on_as_it_would_have(
    step: int, fragile: Path, tmp_path: Path
) -> None:
    knobs = {**resumed.SAVED, "evaluation__logging_steps": 3}
    whole = train(tmp_path / "whole", fragile, [4], **knobs)
    again = resumed.cut_off(whole, step, tmp_path / "again")
    execute(again.root, Stop())

    # Compared as text: NaN equals nothing.
    assert str(resumed.curve(again)) == str(resumed.curve(whole))
    assert resumed.result(again) == resumed.result(whole)
    assert resumed.bits(again) == resumed.bits(whole)
    shown = losses(again)
    assert [number for number, loss in shown.items() if math.isnan(loss)] == [6]
