"""Adapters for a part of a model's layers: in real runs, resumed, merged and refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config

from studio.protocols.events import Failed, Finished
from studio.runner.execution import execute_run
from studio.training.models import adapter_targets
from studio.training.stop_handler import StopHandler
from studio.weights import model_facts
from studio.weights.adapter_targets import AdapterTargets
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.export.test_export import as_trained, exported, logits

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LORA: dict[str, Any] = {"adapter__kind": "lora", "adapter__r": 4, "adapter__lora_alpha": 8}
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
TARGETS: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[int, ...]]] = {
    "attention": ({"adapter__target_modules": "attention"}, ATTENTION, (0, 1)),
    "mlp": ({"adapter__target_modules": "mlp"}, MLP, (0, 1)),
    "names": ({"adapter__module_names": "v_proj , q_proj"}, ("q_proj", "v_proj"), (0, 1)),
    "last layer": ({"adapter__last_layers": 1}, (*ATTENTION, *MLP), (1,)),
    "mlp of last layer": (
        {"adapter__target_modules": "mlp", "adapter__last_layers": 1},
        MLP,
        (1,),
    ),
}


@pytest.mark.smoke
@pytest.mark.parametrize("name", TARGETS)
def test_run_trains_exactly_the_chosen_layers(name: str, model: Path, tmp_path: Path) -> None:
    changes, modules, layers = TARGETS[name]
    run = tiny.train(tmp_path / "run", model, **LORA, **changes, optimisation__max_steps=12)
    saved = load_file(run.artifacts / "adapter_model.safetensors")
    folder, _metrics = exported(run, "float32", "merged")
    plain = AutoModelForCausalLM.from_pretrained(folder.files)

    losses = tiny.metric_values(run, "eval_loss")
    assert isinstance(tiny.last_event(run), Finished)
    assert losses[-1] < losses[0] - 0.02
    assert {key.split(".")[6] for key in saved} == set(modules)
    assert {int(key.split(".")[4]) for key in saved} == set(layers)
    torch.testing.assert_close(logits(plain), as_trained(run), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["names", "mlp of last layer"])
def test_resumed_run_equals_uninterrupted_run(name: str, model: Path, tmp_path: Path) -> None:
    whole = tiny.train(tmp_path / "whole", model, **LORA, **STEPS, **SAVED, **TARGETS[name][0])
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


def test_saved_config_names_modules_as_plain_peft_does(model: Path, tmp_path: Path) -> None:
    changes = TARGETS["mlp of last layer"][0]
    run = tiny.train(tmp_path / "run", model, **LORA, **changes)
    config = json.loads((run.artifacts / "adapter_config.json").read_text(encoding="utf-8"))

    assert sorted(config["target_modules"]) == sorted(MLP)
    assert config["layers_to_transform"] == [1]


def test_names_that_both_parts_have_are_told_apart(tmp_path: Path) -> None:
    """GPT-2's attention and MLP both have a `c_proj`."""
    config = GPT2Config(vocab_size=320, n_embd=32, n_layer=2, n_head=2, n_positions=128)
    base = tiny.write_model(tmp_path / "base", config)
    run = tiny.train(tmp_path / "run", base, **LORA, adapter__target_modules="attention")
    saved = load_file(run.artifacts / "adapter_model.safetensors")
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), run.artifacts)

    modules = {".".join(key.split(".")[5:7]) for key in saved}
    assert modules == {"attn.c_attn", "attn.c_proj"}
    assert {key for key, _weight in loaded.named_parameters() if ".lora_" in key} == {
        key.replace(".weight", ".default.weight") for key in saved
    }


def test_files_and_loaded_model_agree_on_linear_layers(model: Path, tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=320, n_embd=32, n_layer=2, n_head=2, n_positions=128)
    for folder in (model, tiny.write_model(tmp_path / "gpt2", config)):
        loaded = adapter_targets.linear_layers(AutoModelForCausalLM.from_pretrained(folder))
        files = model_facts.read(folder).linear_layers

        for targets in (AdapterTargets(group="attention"), AdapterTargets(last_layers=1)):
            found, read = (
                {(layer.number, layer.is_attention, layer.name) for layer in targets.select(layers)}
                for layers in (loaded, files)
            )
            assert found == read
            assert found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adapter__module_names": "q_proj, query"}, "is named query. It has q_proj"),
        ({"adapter__last_layers": 3}, "This model has 2 layers"),
    ],
)
def test_missing_layers_are_refused(
    changes: dict[str, Any], message: str, model: Path, tmp_path: Path
) -> None:
    run = tiny.train(tmp_path / "run", model, **LORA, **changes)

    failed = tiny.last_event(run)
    assert isinstance(failed, Failed)
    assert (failed.code, message in failed.message) == ("conflict", True)
