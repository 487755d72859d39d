"""Full fine-tunes of a part of a model: what moves, in real runs, resumed, exported and refused."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, GPTNeoXConfig, PreTrainedConfig

from studio.protocols.events import Failed, Finished
from studio.runner.execution import execute_run
from studio.training.models import trained_weights
from studio.training.stop_handler import StopHandler
from studio.weights import model_facts
from studio.weights.trained_weights import ModelWeight, TrainedPart
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.export.test_export import exported, logits

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LAYER = "model.layers.1."
PARTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "last layer": ({"trained_layers": 1}, (LAYER,)),
    "with norms": ({"trained_layers": 1, "also_trained": "norms"}, (LAYER, "norm")),
    "with output": ({"trained_layers": 1, "also_trained": "output"}, (LAYER, "lm_head")),
    "norms alone": ({"trained_layers": 0, "also_trained": "norms"}, ("norm",)),
    "embeddings alone": (
        {"trained_layers": 0, "also_trained": "embeddings"},
        ("embed_tokens", "lm_head"),
    ),
    "all but matrices": (
        {"trained_layers": 0, "also_trained": "norms_and_embeddings"},
        ("norm", "embed_tokens", "lm_head"),
    ),
}


def settings(name: str) -> dict[str, Any]:
    return {f"adapter__{key}": value for key, value in PARTS[name][0].items()}


def small(family: str) -> PreTrainedConfig:
    sizes = {"vocab_size": 320, "num_hidden_layers": 2, "num_attention_heads": 2}
    if family == "gpt2":
        return GPT2Config(vocab_size=320, n_embd=32, n_layer=2, n_head=2, n_positions=128)
    if family == "gpt_neox":
        return GPTNeoXConfig(**sizes, hidden_size=32, intermediate_size=64)
    config = tiny.llama()
    config.tie_word_embeddings = family == "tied llama"
    return config


@pytest.mark.smoke
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16_kahan"])
@pytest.mark.parametrize("name", PARTS)
def test_run_trains_exactly_the_chosen_weights(
    name: str, precision: str, model: Path, tmp_path: Path
) -> None:
    steps = {"optimisation__max_steps": 12, "optimisation__learning_rate": 0.05}
    changes = settings(name) | steps | {"precision": precision}
    run = tiny.train(tmp_path / "run", model, **changes)
    dtype = torch.bfloat16 if precision == "bf16_kahan" else torch.float32
    before = load_file(model / "model.safetensors")
    after = load_file(run.artifacts / "model.safetensors")
    losses = tiny.metric_values(run, "eval_loss")

    assert isinstance(tiny.last_event(run), Finished)
    assert losses[-1] < losses[0] - 0.01
    moved = {key for key, weight in after.items() if not torch.equal(weight, before[key].to(dtype))}
    assert moved == {key for key in before if any(part in key for part in PARTS[name][1])}


@pytest.mark.parametrize("name", ["last layer", "norms alone", "embeddings alone"])
def test_resumed_run_equals_uninterrupted_run(name: str, model: Path, tmp_path: Path) -> None:
    whole = tiny.train(tmp_path / "whole", model, **STEPS, **SAVED, **settings(name))
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


def test_export_loads_in_plain_transformers_and_says_what_was_trained(
    model: Path, tmp_path: Path
) -> None:
    run = tiny.train(tmp_path / "run", model, **settings("with norms"))
    folder, _metrics = exported(run, "float32", "full")
    as_trained = AutoModelForCausalLM.from_pretrained(run.artifacts)
    plain = AutoModelForCausalLM.from_pretrained(folder.files)

    torch.testing.assert_close(logits(plain), logits(as_trained), rtol=0, atol=0)
    card = (folder.files / "README.md").read_text(encoding="utf-8")
    assert "trained were only the last layer and the norms" in card


def test_tied_embeddings_stay_tied(tmp_path: Path) -> None:
    base = tiny.write_model(tmp_path / "base", small("tied llama"))
    run = tiny.train(tmp_path / "run", base, **settings("embeddings alone"))
    trained = AutoModelForCausalLM.from_pretrained(run.artifacts)

    assert trained.lm_head.weight is trained.model.embed_tokens.weight
    assert "lm_head.weight" not in load_file(run.artifacts / "model.safetensors")


@pytest.mark.parametrize("family", ["llama", "tied llama", "gpt2", "gpt_neox"])
def test_files_and_loaded_model_agree_on_weights(family: str, tmp_path: Path) -> None:
    folder = tiny.write_model(tmp_path / "model", small(family))
    loaded = trained_weights.model_weights(AutoModelForCausalLM.from_pretrained(folder))
    files = model_facts.read(folder).weights

    def kinds(weights: list[ModelWeight]) -> Counter[tuple[int, bool, bool]]:
        """Count weights by what they are: some families have other names in files."""
        return Counter((w.size, w.is_embedding, w.is_output) for w in weights)

    assert kinds([*files]) == kinds(loaded)
    for part in (TrainedPart(last_layers=1), TrainedPart(last_layers=0, extra="norms")):
        assert kinds(part.select(files)) == kinds(part.select(loaded))
        assert part.select(files)


def test_missing_layers_are_refused(model: Path, tmp_path: Path) -> None:
    run = tiny.train(tmp_path / "run", model, adapter__trained_layers=3)

    failed = tiny.last_event(run)
    assert isinstance(failed, Failed)
    assert (failed.code, "This model has 2 layers" in failed.message) == ("conflict", True)
