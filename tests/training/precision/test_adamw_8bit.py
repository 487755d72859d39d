"""AdamW with 8-bit states: which weights have them, in real runs, resumed and audited."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from studio.protocols.events import Finished, Started
from studio.runner.execution import execute_run
from studio.training.stop_handler import StopHandler
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.runs.test_optimisation_options import make_trainer

pytest.importorskip("bitsandbytes")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

OPTIM: dict[str, Any] = {"optimisation__optim": "adamw_8bit"}
CONFIG = LlamaConfig(
    vocab_size=320,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=128,
)
"""Its matrices have at least 4,096 values, except for keys and values."""


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("wide") / "model", CONFIG)


@pytest.mark.smoke
@pytest.mark.parametrize("kind", ["full", "lora"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_run_learns_nearly_like_adamw(
    precision: str, kind: str, wide: Path, tmp_path: Path
) -> None:
    changes = {"precision": precision, "adapter__kind": kind, "optimisation__max_steps": 12}
    if kind == "lora":
        changes |= {"adapter__r": 64}
    runs = [
        tiny.train(tmp_path / optim, wide, **changes, optimisation__optim=optim)
        for optim in ("adamw_8bit", "adamw_torch")
    ]

    assert all(isinstance(tiny.last_event(run), Finished) for run in runs)
    (first, *_, last), (same, *_, full) = (tiny.metric_values(run, "eval_loss") for run in runs)
    assert first == same
    assert last != full
    assert last == pytest.approx(full, abs=0.05 * (first - full))


def test_large_matrices_have_8bit_states_and_others_float32(wide: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tiny.write_run(tmp_path / "run", wide, **OPTIM))
    optimizer = trainer.create_optimizer()
    for weight in trainer.model.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    found = {
        name: optimizer.state[weight]["state1"].dtype
        for name, weight in trainer.model.named_parameters()
    }

    large = ("q_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    narrow = {name for name, dtype in found.items() if dtype == torch.uint8}
    assert narrow == {name for name in found if any(part in name for part in large)}
    assert {dtype for name, dtype in found.items() if name not in narrow} == {torch.float32}


def test_resumed_run_equals_uninterrupted_run(wide: Path, tmp_path: Path) -> None:
    whole = tiny.train(tmp_path / "whole", wide, **STEPS, **SAVED, **OPTIM)
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


def test_audit_measures_8bit_states(wide: Path, tmp_path: Path) -> None:
    run = tiny.train(tmp_path / "run", wide, **OPTIM)
    (started,) = tiny.events_of(run, Started)

    audit = started.resolved["audit"]
    assert audit["optimizer_states"] == "uint8"
    assert audit["optimizer"].startswith("AdamW with 8-bit states")
