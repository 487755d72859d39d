"""Every family of models we name trains through the runner, in bfloat16."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import (
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen3Config,
    RwkvConfig,
)

from studio.events import Finished, Started
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
    "gpt2": GPT2Config(vocab_size=320, n_embd=32, n_layer=2, n_head=2, n_positions=128),
    "rwkv": RwkvConfig(
        vocab_size=320, hidden_size=32, num_hidden_layers=7, context_length=128, eos_token_id=2
    ),
}
ATTENTION = dict.fromkeys(FAMILIES, "sdpa") | {"rwkv": "eager"}


@pytest.mark.parametrize("adapter", ["lora", "full"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_trains(family: str, adapter: str, tmp_path: Path) -> None:
    model = tiny.write_model(tmp_path / "model", FAMILIES[family])

    run = tiny.train(
        tmp_path / "run",
        model,
        precision="bf16",
        adapter__kind=adapter,
        optimisation__max_steps=2,
        samples__prompts=2,
    )

    assert isinstance(tiny.last(run), Finished), (run.root / "events.jsonl").read_text()
    resolved = tiny.said(run, Started)[0].resolved
    assert (resolved["compute"], resolved["attention"]) == ("bfloat16", ATTENTION[family])
    assert tiny.series(run, "loss")[0] != tiny.series(run, "loss")[1]


def test_rwkv_is_saved_as_it_was_measured(tmp_path: Path) -> None:
    """Upstream divides its weights in evaluation and saves the quotient; we keep it from that."""
    model = tiny.write_model(tmp_path / "model", FAMILIES["rwkv"])
    run = tiny.train(tmp_path / "run", model, optimisation__max_steps=1)

    still = {"optimisation__max_steps": 1, "optimisation__learning_rate": 1e-12}
    again = tiny.train(tmp_path / "again", run.artifacts, **still)

    ended, begun = tiny.series(run, "eval_loss")[-1], tiny.series(again, "eval_loss")[0]
    assert begun == pytest.approx(ended, rel=1e-4)
