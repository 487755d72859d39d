"""The memory that a run is expected to take on a GPU, and what it takes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from studio.protocols.events import Started
from studio.protocols.run_dir import RunDir
from tests.gpu import separate_runs
from tests.training import tiny
from tests.training.tiny import LORA, Changes, Row

pytest.importorskip("sqlmodel", reason="the estimate is made on the web's side")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine"),
    pytest.mark.filterwarnings("ignore"),
]

SIZES: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 2752,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "max_position_embeddings": 1024,
}
MODELS = {
    "plain": LlamaConfig(vocab_size=320, **SIZES),
    "many words, shared keys": LlamaConfig(
        vocab_size=65536, **SIZES | {"num_key_value_heads": 4}, tie_word_embeddings=True
    ),
}
LONG = " ".join(map(str, range(600)))
CHECKPOINTED: Changes = {"optimisation__activation_checkpointing": True}
CASES: list[tuple[str, str, Changes]] = [
    *(("sft", "plain", {"precision": mode}) for mode in ("fp32", "bf16", "fp16", "bf16_pure")),
    *(("sft", "plain", LORA | {"precision": mode}) for mode in ("fp32", "bf16", "fp16")),
    *(("sft", name, {"precision": "bf16"} | CHECKPOINTED) for name in MODELS),
    *(("sft", name, LORA | {"precision": "bf16"} | CHECKPOINTED) for name in MODELS),
    ("sft", "many words, shared keys", {"precision": "bf16"}),
    ("sft", "many words, shared keys", LORA | {"precision": "bf16"}),
    ("sft", "plain", {"precision": "bf16", "optimisation__gradient_accumulation_steps": 2}),
    *((name, "plain", {"precision": "bf16"}) for name in ("dpo", "reward", "classify", "tokens")),
    *((name, "plain", LORA | {"precision": "bf16"}) for name in ("dpo", "reward", "classify")),
]


def row(method: str, number: int) -> Row:
    prompt = {"role": "user", "content": "Count."}
    answers = [{"role": "assistant", "content": f"{start} {LONG}"} for start in ("So:", "No:")]
    match method:
        case "sft":
            return {"messages": [prompt, answers[0]]}
        case "classify":
            label = {"role": "assistant", "content": "ab"[number % 2]}
            return {"messages": [{"role": "user", "content": LONG}, label]}
        case "tokens":
            words = LONG.split()
            return {"text": LONG, "words": words, "tags": ["B-x", *["O"] * (len(words) - 1)]}
        case _:
            return {"messages": [prompt], "chosen": answers[:1], "rejected": answers[1:]}


def train(root: Path, method: str, name: str, changes: Changes) -> tuple[Path, RunDir]:
    model = tiny.write_model(root / "model", MODELS[name])
    if method != "sft":
        changes = {"samples__max_new_tokens": 1} | changes
    run = separate_runs.train(
        root / "run",
        model,
        [row(method, number) for number in range(40)],
        **{
            "method": method,
            "optimisation__max_steps": 3,
            "optimisation__per_device_train_batch_size": 8,
            "evaluation__per_device_eval_batch_size": 4,
            "data__max_length": 512,
            **changes,
        },
    )
    return model, run


@pytest.mark.parametrize(
    ("method", "name", "changes"),
    CASES,
    ids=lambda one: one if isinstance(one, str) else "-".join(map(str, one.values())),
)
def test_estimate_is_within_a_tenth_of_peak(
    method: str, name: str, changes: Changes, tmp_path: Path
) -> None:
    from studio.methods import RECIPE_ADAPTER  # noqa: PLC0415 -- only where the web's packages are
    from studio.recipe import yaml  # noqa: PLC0415 -- the same
    from studio.services.estimates import memory  # noqa: PLC0415 -- the same
    from studio.weights import model_facts  # noqa: PLC0415 -- the same

    model, run = train(tmp_path, method, name, changes)
    recipe = RECIPE_ADAPTER.validate_python(yaml.load(run.recipe.read_text()), strict=False)
    resolved: dict[str, Any] = tiny.events_of(run, Started)[0].resolved
    load = memory.batch_shape(recipe, resolved)

    found = memory.estimate(recipe, model_facts.read(model), load, on_gpu=True)
    assert found is not None
    measured = tiny.metric_values(run, "peak_memory_bytes")[-1]
    assert found.total == pytest.approx(measured, rel=0.1), found


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_health_checks_take_no_memory(name: str, tmp_path: Path) -> None:
    """They are due in the first step, and read every layer's output."""
    peaks = []
    for checks in (False, True):
        changes = {"precision": name, "numerics__health": checks}
        _model, run = train(tmp_path / str(checks), "sft", "plain", changes)
        peaks.append(tiny.metric_values(run, "peak_memory_bytes")[-1])

    assert peaks[1] == pytest.approx(peaks[0], rel=0.01)
