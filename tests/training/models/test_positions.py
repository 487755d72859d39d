"""Rotary positions stretched for longer texts: in real runs, saved, resumed and refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, PreTrainedConfig

from studio.protocols.events import Failed, Finished
from studio.recipe.model_options import RopeType
from studio.runner.execution import execute_run
from studio.training.models import loader, positions
from studio.training.stop_handler import StopHandler
from studio.weights import model_facts
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.export.test_export import exported, logits
from tests.training.memory import tiny_configs

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TYPES: list[RopeType] = ["linear", "dynamic", "yarn"]
LONG = torch.arange(300).remainder(300)[None] + 3
"""More tokens than the model was made for."""


def settings(rope_type: RopeType) -> dict[str, Any]:
    return {"model__rope_type": rope_type, "model__rope_factor": 4.0}


@pytest.mark.smoke
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("rope_type", TYPES)
def test_run_saves_a_model_that_computes_as_it_was_trained(
    rope_type: RopeType, precision: str, model: Path, tmp_path: Path
) -> None:
    run = tiny.train(tmp_path / "run", model, **settings(rope_type), precision=precision)
    saved = json.loads((run.artifacts / "config.json").read_text(encoding="utf-8"))
    folder, _metrics = exported(run, "float32", "full")
    trained, plain = map(AutoModelForCausalLM.from_pretrained, (run.artifacts, folder.files))

    assert isinstance(tiny.last_event(run), Finished)
    assert saved["rope_parameters"].items() >= {"rope_type": rope_type, "factor": 4.0}.items()
    assert saved["max_position_embeddings"] == (128 if rope_type == "dynamic" else 512)
    torch.testing.assert_close(logits(plain), logits(trained), rtol=0, atol=0)
    assert tiny.metric_values(run, "eval_loss")[-1] < tiny.metric_values(run, "eval_loss")[0]


@pytest.mark.parametrize("rope_type", TYPES)
def test_positions_are_those_of_upstream(rope_type: RopeType, model: Path) -> None:
    """Dynamic ones change nothing up to the original length; linear ones everything."""
    config = loader.load_config(str(model))
    positions.stretch(config, rope_type, 4.0)
    stretched = loader.load_model(str(model), config, "float32")
    original = AutoModelForCausalLM.from_pretrained(model, attn_implementation="sdpa")

    short = torch.equal(logits(stretched), logits(original))
    with torch.no_grad():
        long = [one.eval()(LONG).logits for one in (stretched, original)]
    assert short == (rope_type == "dynamic")
    assert not torch.equal(*long)


@pytest.mark.parametrize("rope_type", TYPES)
def test_resumed_run_equals_uninterrupted_run(
    rope_type: RopeType, model: Path, tmp_path: Path
) -> None:
    whole = tiny.train(tmp_path / "whole", model, **STEPS, **SAVED, **settings(rope_type))
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


def stretched_llama() -> PreTrainedConfig:
    config = tiny.llama()
    positions.stretch(config, "yarn", 2.0)
    return config


@pytest.mark.parametrize(
    ("config", "kind", "message"),
    [
        (GPT2Config(n_embd=32, n_layer=2, n_head=2), "none", "have no rotary positions"),
        (stretched_llama(), "yarn", "are stretched already (yarn)"),
        (
            tiny_configs.config("gemma3_text", words=320, hidden=32, inner=64, layers=2),
            "by_layer",
            "have different positions in different layers",
        ),
    ],
    ids=["gpt2", "stretched", "gemma3"],
)
def test_other_positions_are_refused_by_files_and_by_runs(
    config: PreTrainedConfig, kind: str, message: str, tmp_path: Path
) -> None:
    config.vocab_size = 320
    base = tiny.write_model(tmp_path / "base", config)
    failed = tiny.last_event(tiny.train(tmp_path / "run", base, **settings("linear")))

    assert model_facts.read(base).rope == kind
    assert isinstance(failed, Failed)
    assert (failed.code, message in failed.message) == ("conflict", True)
