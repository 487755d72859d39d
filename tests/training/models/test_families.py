"""Every family of models we name trains through the runner, in bfloat16."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    Ernie4_5_MoeConfig,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen3Config,
    RwkvConfig,
)

from studio.errors import TrainingError
from studio.protocols.events import Finished, Started
from studio.runner import training_run
from studio.training.stop_handler import StopHandler
from tests.training import tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SIZE: Mapping[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "eos_token_id": 2,
}
FAMILIES: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZE),
    "qwen3": Qwen3Config(**SIZE),
    "gemma3": Gemma3TextConfig(**SIZE, query_pre_attn_scalar=16),
    "mistral": MistralConfig(**SIZE),
    "phi3": Phi3Config(**SIZE),
    "mamba": MambaConfig(vocab_size=320, hidden_size=32, num_hidden_layers=2, state_size=8),
    "gpt2": GPT2Config(vocab_size=320, n_embd=32, n_layer=2, n_head=2, n_positions=128),
    "rwkv": RwkvConfig(
        vocab_size=320, hidden_size=32, num_hidden_layers=7, context_length=128, eos_token_id=2
    ),
}
ATTENTION = dict.fromkeys(FAMILIES, "sdpa") | {"rwkv": "eager", "mamba": "eager"}


# In full, test_precision_matrix trains the most different of them.
@pytest.mark.parametrize("adapter", ["lora", "full"])
@pytest.mark.parametrize("family", FAMILIES)
def test_model_family_trains_in_bfloat16(family: str, adapter: str, tmp_path: Path) -> None:
    model = tiny.write_model(tmp_path / "model", FAMILIES[family])

    run = tiny.train(
        tmp_path / "run",
        model,
        precision="bf16",
        adapter__kind=adapter,
        optimisation__max_steps=2,
        samples__prompts=2,
    )

    assert isinstance(tiny.last_event(run), Finished), (run.root / "events.jsonl").read_text()
    resolved = tiny.events_of(run, Started)[0].resolved
    assert (resolved["compute"], resolved["attention"]) == ("bfloat16", ATTENTION[family])
    assert tiny.metric_values(run, "loss")[0] != tiny.metric_values(run, "loss")[1]


KEEPING = Ernie4_5_MoeConfig(
    **SIZE,
    num_experts=2,
    moe_num_experts=2,
    moe_k=1,
    moe_intermediate_size=32,
    moe_layer_start_index=0,
)
"""A family that leaves the gates of its experts in float32 in any 16-bit format."""


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16_pure"},
        {"precision": "bf16_dual"},
        {"precision": "bf16", "adapter__kind": "lora", "adapter__base_dtype": "bfloat16"},
    ],
    ids=lambda changes: changes["precision"],
)
def test_float32_layers_appear_in_plan_and_audit(changes: dict[str, Any], tmp_path: Path) -> None:
    model = tiny.write_model(tmp_path / "model", KEEPING)
    run = tiny.train(tmp_path / "run", model, **changes)

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    resolved = tiny.events_of(run, Started)[0].resolved
    assert resolved["plan"]["kept_in_float32"] == ["gate.weight", "moe_statics"]
    assert resolved["audit"]["kept_in_float32"] == ["gate.weight", "moe_statics"]
    assert resolved["audit"]["weights"] == "bfloat16"


def test_run_stops_when_float32_layer_is_in_bfloat16(tmp_path: Path) -> None:
    model = tiny.write_model(tmp_path / "model", KEEPING)
    run = tiny.write_run(tmp_path / "run", model, precision="bf16_pure")
    made = training_run.prepare(run, run.events.append, StopHandler())
    made.trainer.model.model.layers[0].mlp.gate.to(torch.bfloat16)

    with pytest.raises(TrainingError, match=r"layers.0.mlp.gate.weight is bfloat16"):
        made.trainer.train()


def test_mamba_adapter_targets_only_trainable_layers(tmp_path: Path) -> None:
    """Mamba's kernels read the weights of most layers past the layers themselves."""
    run = tiny.train(
        tmp_path / "run",
        tiny.write_model(tmp_path / "model", FAMILIES["mamba"]),
        adapter__kind="lora",
    )

    adapter = load_file(run.artifacts / "adapter_model.safetensors")
    learnt = {name.split(".")[-3]: bool(one.any()) for name, one in adapter.items() if "_B" in name}
    assert learnt == {"in_proj": True}


def test_saved_rwkv_model_has_same_validation_loss(tmp_path: Path) -> None:
    """Upstream divides its weights in evaluation and saves the quotient; we keep it from that."""
    model = tiny.write_model(tmp_path / "model", FAMILIES["rwkv"])
    run = tiny.train(tmp_path / "run", model, optimisation__max_steps=1)

    still = {"optimisation__max_steps": 1, "optimisation__learning_rate": 1e-12}
    again = tiny.train(tmp_path / "again", run.artifacts, **still)

    ended, begun = (
        tiny.metric_values(run, "eval_loss")[-1],
        tiny.metric_values(again, "eval_loss")[0],
    )
    assert begun == pytest.approx(ended, rel=1e-4)
