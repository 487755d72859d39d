"""Parts of a model trained next to an adapter: in real runs, tied, resumed, merged and refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from studio.protocols.events import Failed, Finished
from studio.runner.execution import execute_run
from studio.training.stop_handler import StopHandler
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.export.test_export import as_trained, exported, logits
from tests.training.models.test_trained_weights import small

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LORA: dict[str, Any] = {"adapter__kind": "lora", "adapter__r": 4, "adapter__lora_alpha": 8}
NORMS = {"input_layernorm", "post_attention_layernorm", "norm"}
EXTRAS: dict[str, set[str]] = {
    "norms": NORMS,
    "output": {"lm_head"},
    "embeddings": {"embed_tokens", "lm_head"},
    "norms_and_embeddings": NORMS | {"embed_tokens", "lm_head"},
}


def tied(folder: Path) -> Path:
    return tiny.write_model(folder / "tied", small("tied llama"))


def saved_extras(weights: dict[str, torch.Tensor]) -> set[str]:
    return {key.split(".")[-2] for key in weights if ".lora_" not in key}


@pytest.mark.smoke
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("extra", EXTRAS)
def test_run_trains_saves_and_merges_the_extra_modules(
    extra: str, precision: str, model: Path, tmp_path: Path
) -> None:
    changes = {"adapter__extra_modules": extra, "precision": precision}
    run = tiny.train(tmp_path / "run", model, **LORA, **changes, optimisation__max_steps=12)
    losses = tiny.metric_values(run, "eval_loss")
    assert isinstance(tiny.last_event(run), Finished)
    assert losses[-1] < losses[0] - 0.02

    saved, base = (
        load_file(file)
        for file in (run.artifacts / "adapter_model.safetensors", model / "model.safetensors")
    )
    assert saved_extras(saved) == EXTRAS[extra]
    moved = {
        key
        for key, weight in saved.items()
        if ".lora_" not in key
        and not torch.equal(weight, base[key.removeprefix("base_model.model.")])
    }
    assert {key.split(".")[-2] for key in moved} == EXTRAS[extra]
    folder, _metrics = exported(run, "float32", "merged")
    plain = AutoModelForCausalLM.from_pretrained(folder.files)
    torch.testing.assert_close(logits(plain), as_trained(run), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_tied_embeddings_stay_tied(precision: str, tmp_path: Path) -> None:
    changes = {"adapter__extra_modules": "embeddings", "precision": precision}
    run = tiny.train(tmp_path / "run", tied(tmp_path), **LORA, **changes)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "tied")
    loaded: Any = PeftModel.from_pretrained(base, run.artifacts)
    folder, _metrics = exported(run, "float32", "merged")
    merged = AutoModelForCausalLM.from_pretrained(folder.files)
    trained = load_file(run.artifacts / "adapter_model.safetensors")

    inner = loaded.get_base_model()
    assert inner.lm_head.weight is inner.model.embed_tokens.weight
    assert merged.lm_head.weight is merged.model.embed_tokens.weight
    table, head = (trained[f"base_model.model.{name}"] for name in (_TABLE, "lm_head.weight"))
    assert torch.equal(table, head)
    assert torch.equal(merged.lm_head.weight, table)
    assert "lm_head.weight" not in load_file(folder.files / "model.safetensors")
    assert not torch.equal(table, load_file(tmp_path / "tied/model.safetensors")[_TABLE])
    torch.testing.assert_close(logits(merged), logits(loaded), rtol=1e-4, atol=2e-5)


_TABLE = "model.embed_tokens.weight"


@pytest.mark.parametrize("is_tied", [False, True])
def test_resumed_run_equals_uninterrupted_run(
    model: Path, tmp_path: Path, *, is_tied: bool
) -> None:
    base = tied(tmp_path) if is_tied else model
    changes = {"adapter__extra_modules": "norms_and_embeddings"}
    whole = tiny.train(tmp_path / "whole", base, **LORA, **STEPS, **SAVED, **changes)
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


@pytest.mark.parametrize(
    ("extra", "precision"), [("output", "bf16"), ("norms_and_embeddings", "fp32")]
)
def test_quantised_model_computes_as_planned(
    extra: str, precision: str, model: Path, tmp_path: Path
) -> None:
    changes = {"adapter__base_dtype": "nf4", "precision": precision}
    run = tiny.train(tmp_path / "run", model, **LORA, **changes, adapter__extra_modules=extra)

    assert isinstance(tiny.last_event(run), Finished)


@pytest.mark.parametrize("extra", ["norms", "embeddings"])
def test_float32_parts_before_quantised_weights_are_refused_in_16_bits(
    extra: str, model: Path, tmp_path: Path
) -> None:
    changes = {"adapter__base_dtype": "nf4", "precision": "bf16"}
    run = tiny.train(tmp_path / "run", model, **LORA, **changes, adapter__extra_modules=extra)

    failed = tiny.last_event(run)
    assert isinstance(failed, Failed)
    assert (failed.code, "would compute in float32 behind them" in failed.message) == (
        "conflict",
        True,
    )


@pytest.mark.parametrize(
    ("family", "extra", "message"),
    [
        ("tied llama", "output", "is its token embeddings: train the embeddings"),
        ("gpt2", "embeddings", "is its token embeddings, wte"),
    ],
)
def test_what_peft_cannot_train_is_refused(
    family: str, extra: str, message: str, tmp_path: Path
) -> None:
    base = tiny.write_model(tmp_path / "base", small(family))
    run = tiny.train(tmp_path / "run", base, **LORA, adapter__extra_modules=extra)

    failed = tiny.last_event(run)
    assert isinstance(failed, Failed)
    assert (failed.code, message in failed.message) == ("conflict", True)


@pytest.mark.parametrize("kind", ["oft", "ia3"])
def test_other_adapters_train_extra_modules_that_are_not_tied(
    kind: str, model: Path, tmp_path: Path
) -> None:
    changes = {"adapter__kind": kind, "adapter__extra_modules": "norms_and_embeddings"}
    run = tiny.train(tmp_path / "run", model, **changes)
    failed = tiny.last_event(tiny.train(tmp_path / "other", tied(tmp_path), **changes))

    assert isinstance(tiny.last_event(run), Finished)
    assert saved_extras(load_file(run.artifacts / "adapter_model.safetensors")) >= NORMS | {
        "embed_tokens",
        "lm_head",
    }
    assert isinstance(failed, Failed)
    assert "which only LoRA can train next to it" in failed.message
