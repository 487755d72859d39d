"""Adapters other than LoRA in real runs: rotations (OFT) and factors (IA3)."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config

from studio.protocols.events import Failed, Finished, Started
from studio.protocols.run_dir import RunDir
from studio.recipe.precision import QUANTISED
from studio.runner.execution import execute_run
from studio.runner.training_run import load_recipe
from studio.services.precision import number_formats
from studio.training.stop_handler import StopHandler
from studio.weights import model_facts
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.export.test_export import as_trained, exported, logits
from tests.training.runs import test_preferences, test_sequence_to_sequence

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

OTHERS: dict[str, dict[str, Any]] = {
    "oft": {"adapter__kind": "oft", "adapter__oft_block_size": 16},
    "ia3": {"adapter__kind": "ia3", "optimisation__learning_rate": 0.1},
}
KINDS = list(OTHERS)
LAST = {"adapter__last_layers": 1, "adapter__target_modules": "mlp"}


def resolved(run: RunDir) -> dict[str, Any]:
    told: dict[str, Any] = tiny.events_of(run, Started)[0].resolved
    return told


@pytest.mark.smoke
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("precision", "base_dtype"),
    [
        ("fp32", "native"),
        ("bf16", "native"),
        ("fp16", "native"),
        ("bf16", "bfloat16"),
        ("fp16", "float16"),
    ],
)
def test_adapter_starts_as_the_base_model_and_learns_in_float32(
    kind: str, precision: str, base_dtype: str, model: Path, tmp_path: Path
) -> None:
    formats = {"precision": precision, "adapter__base_dtype": base_dtype}
    run = tiny.train(tmp_path / "run", model, **OTHERS[kind], **formats, optimisation__max_steps=12)
    untrained = tiny.train(tmp_path / "plain", model, optimisation__max_steps=1)
    told = resolved(run)

    losses = tiny.metric_values(run, "eval_loss")
    assert isinstance(tiny.last_event(run), Finished)
    near = 1e-5 if precision == "fp32" else 5e-3
    assert losses[0] == pytest.approx(tiny.metric_values(untrained, "eval_loss")[0], rel=near)
    assert losses[-1] < losses[0] - 0.05
    assert {name: told["audit"][name] for name in told["plan"]} == told["plan"]
    assert told["audit"]["trained"] == "float32"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [{}, LAST, {"precision": "bf16"}], ids=["all", "last", "bf16"])
def test_resumed_run_equals_uninterrupted_run(
    kind: str, changes: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    knobs = OTHERS[kind] | STEPS | SAVED | changes
    whole = tiny.train(tmp_path / "whole", model, **knobs)
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [{}, LAST], ids=["all", "last"])
def test_plan_counts_what_is_trained(
    kind: str, changes: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    run = tiny.train(tmp_path / "run", model, **OTHERS[kind], **changes)
    saved = load_file(run.artifacts / "adapter_model.safetensors")
    plan = number_formats.plan_dtypes(load_recipe(run), model_facts.read(model))

    assert plan.trained_parameters == sum(weight.numel() for weight in saved.values())
    layers = {int(name.split(".")[4]) for name in saved}
    assert layers == ({1} if changes else {0, 1})


@pytest.mark.parametrize("kind", KINDS)
def test_merged_export_equals_adapter_on_base(kind: str, model: Path, tmp_path: Path) -> None:
    run = tiny.train(tmp_path / "run", model, **OTHERS[kind], optimisation__max_steps=12)
    folder, told = exported(run, "float32", "merged")
    plain = AutoModelForCausalLM.from_pretrained(folder.files)

    torch.testing.assert_close(logits(plain), as_trained(run), rtol=1e-4, atol=2e-5)
    assert told["loss_before"] == pytest.approx(tiny.metric_values(run, "eval_loss")[-1], rel=1e-5)
    assert told["loss_after"] == pytest.approx(told["loss_before"], rel=1e-5)


@pytest.mark.parametrize("base_dtype", QUANTISED)
def test_rotations_on_quantised_base_learn_and_merge_into_what_they_were_trained_on(
    base_dtype: str, model: Path, tmp_path: Path
) -> None:
    knobs = OTHERS["oft"] | {"adapter__base_dtype": base_dtype, "precision": "bf16"}
    run = tiny.train(tmp_path / "run", model, **knobs, optimisation__max_steps=12)
    told, losses = resolved(run), tiny.metric_values(run, "eval_loss")
    measured = exported(run, "float32", "merged")[1]

    assert losses[-1] < losses[0] - 0.05
    assert {name: told["audit"][name] for name in told["plan"]} == told["plan"]
    near = 1e-3 if base_dtype == "int8" else 1e-5
    assert measured["loss_after"] == pytest.approx(measured["loss_before"], rel=near)
    assert measured["loss_before"] == pytest.approx(losses[-1], rel=5e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoint_fits_the_saved_adapter(kind: str, model: Path, tmp_path: Path) -> None:
    from studio.training.checkpoints import trainer_state  # noqa: PLC0415 -- used only here

    run = tiny.train(tmp_path / "run", model, **OTHERS[kind], **STEPS, **SAVED)
    served = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), run.artifacts)
    final = logits(served)
    trainer_state.apply_weights(served, run.checkpoints / "checkpoint-6", "default")
    earlier = logits(served)
    trainer_state.apply_weights(served, run.checkpoints / "checkpoint-12", "default")

    assert not earlier.equal(final)
    assert logits(served).equal(final)


@pytest.mark.parametrize("kind", KINDS)
def test_reference_of_a_preference_run_is_the_model_without_adapter(
    kind: str, model: Path, tmp_path: Path
) -> None:
    run = test_preferences.train(tmp_path / "run", model, OTHERS[kind])

    assert not load_recipe(run).precomputes_reference  # type: ignore[attr-defined] # a DPO recipe
    assert tiny.metric_values(run, "eval_loss")[0] == pytest.approx(0.693147, abs=1e-4)
    assert tiny.metric_values(run, "eval_reward_margin")[-1] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_encoder_decoder_models_learn_too(kind: str, tmp_path: Path) -> None:
    base = test_sequence_to_sequence.write_model(tmp_path / "t5", "t5")
    changes = OTHERS[kind] | {"adapter__target_modules": "attention"}
    run = test_sequence_to_sequence.train(
        tmp_path / "run", base, test_sequence_to_sequence.LEARNS | changes
    )

    losses = tiny.metric_values(run, "eval_loss")
    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    assert min(losses) < losses[0] * 0.95
    names = load_file(run.artifacts / "adapter_model.safetensors")
    assert all("Attention" in name for name in names)


def test_factors_scale_inputs_of_the_layer_back_and_outputs_of_the_others(
    model: Path, tmp_path: Path
) -> None:
    run = tiny.train(tmp_path / "run", model, **OTHERS["ia3"])
    config = json.loads((run.artifacts / "adapter_config.json").read_text(encoding="utf-8"))
    saved = load_file(run.artifacts / "adapter_model.safetensors")
    shapes = {name.split(".")[-2]: tuple(weight.shape) for name, weight in saved.items()}

    assert config["feedforward_modules"] == ["down_proj"]
    assert (shapes["down_proj"], shapes["gate_proj"], shapes["k_proj"]) == (
        (1, 64),
        (64, 1),
        (16, 1),
    )


@pytest.mark.parametrize("changes", [{}, LAST], ids=["all", "last"])
def test_factors_of_transposed_layers(changes: dict[str, Any], tmp_path: Path) -> None:
    """GPT-2 stores its layers transposed, and both its parts have a `c_proj`."""
    config = GPT2Config(vocab_size=320, n_embd=32, n_layer=2, n_head=2, n_positions=128)
    base = tiny.write_model(tmp_path / "base", config)
    run = tiny.train(tmp_path / "run", base, **OTHERS["ia3"], **changes, optimisation__max_steps=12)
    plain = AutoModelForCausalLM.from_pretrained(exported(run, "float32", "merged")[0].files)
    saved = load_file(run.artifacts / "adapter_model.safetensors")

    torch.testing.assert_close(logits(plain), as_trained(run), rtol=1e-4, atol=2e-5)
    inputs = {name.rpartition(".ia3_l")[0] for name, one in saved.items() if one.shape[0] == 1}
    assert all(name.endswith("mlp.c_proj") for name in inputs)
    assert len(inputs) == (1 if changes else 2)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (tiny.llama(), {"adapter__oft_block_size": 24}, "Blocks of 24 do not divide the 32 inputs"),
        (
            GPT2Config(vocab_size=320, n_embd=32, n_layer=2, n_head=2, n_positions=128),
            {},
            "OFT does not support transposed layers",
        ),
    ],
    ids=["block size", "transposed"],
)
def test_what_cannot_be_rotated_is_refused(
    config: Any,  # noqa: ANN401 -- any config of upstream
    changes: dict[str, Any],
    message: str,
    tmp_path: Path,
) -> None:
    base = tiny.write_model(tmp_path / "base", config)
    run = tiny.train(tmp_path / "run", base, **OTHERS["oft"] | changes)

    failed = tiny.last_event(run)
    assert isinstance(failed, Failed)
    assert (failed.code, message in failed.message) == ("conflict", True)
