"""Variants of LoRA in real runs: they start as the base model, resume, and fit plain peft."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config

from studio.protocols.events import Failed, Finished
from studio.recipe.lora_variants import LORA_VARIANTS
from studio.runner.execution import execute_run
from studio.runner.training_run import load_recipe
from studio.training.checkpoints import trainer_state
from studio.training.job import TrainingJob
from studio.training.models import lora_variants
from studio.training.stop_handler import StopHandler
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.export.test_export import as_trained, exported, logits
from tests.training.runs import test_preferences, test_ratings

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LORA: dict[str, Any] = {"adapter__kind": "lora", "adapter__r": 4, "adapter__lora_alpha": 8}
UNQUANTISED = [name for name, row in LORA_VARIANTS.items() if not row.corrects_rounding]
CHANGING = [name for name, row in LORA_VARIANTS.items() if row.changes_base]


def make_model(job: TrainingJob) -> PeftModel:
    """Return the model of a run before training, as its trainer makes it."""
    from peft import get_peft_model  # noqa: PLC0415 -- used only here

    model = get_peft_model(job.model, job.adapter)
    assert job.variant is not None
    lora_variants.split_base(model, job.variant, job.run_dir.adapter_start)
    return model


@pytest.mark.smoke
@pytest.mark.parametrize("variant", UNQUANTISED)
def test_variant_starts_as_the_base_model_and_learns(
    variant: str, model: Path, tmp_path: Path
) -> None:
    run = tiny.train(
        tmp_path / "run", model, **LORA, adapter__variant=variant, optimisation__max_steps=12
    )
    untrained = tiny.train(tmp_path / "plain", model, optimisation__max_steps=1)

    losses = tiny.metric_values(run, "eval_loss")
    assert isinstance(tiny.last_event(run), Finished)
    assert losses[0] == pytest.approx(tiny.metric_values(untrained, "eval_loss")[0], rel=1e-5)
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize("variant", [name for name in UNQUANTISED if name != "plain"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_resumed_variant_equals_uninterrupted_run(
    variant: str, precision: str, model: Path, tmp_path: Path
) -> None:
    changes = {"adapter__variant": variant, "precision": precision}
    whole = tiny.train(tmp_path / "whole", model, **LORA, **STEPS, **SAVED, **changes)
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.resumed_at(again) == [(2, 7)]
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


@pytest.mark.parametrize("scaling", [False, True], ids=["alpha", "rank-stabilised"])
@pytest.mark.parametrize("variant", UNQUANTISED)
def test_saved_variant_fits_the_original_base_in_plain_peft(
    variant: str, *, scaling: bool, model: Path, tmp_path: Path
) -> None:
    changes = {"adapter__variant": variant, "adapter__use_rslora": scaling}
    run = tiny.train(tmp_path / "run", model, **LORA, **changes, optimisation__max_steps=12)
    folder, metrics = exported(run, "float32", "merged")
    plain = AutoModelForCausalLM.from_pretrained(folder.files)
    config = json.loads((run.artifacts / "adapter_config.json").read_text(encoding="utf-8"))

    torch.testing.assert_close(logits(plain), as_trained(run), rtol=1e-4, atol=2e-5)
    trained_loss = tiny.metric_values(run, "eval_loss")[-1]
    assert metrics["loss_before"] == pytest.approx(trained_loss, rel=1e-5)
    assert config["r"] == (8 if variant in CHANGING else 4)
    assert config["init_lora_weights"] is True


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("variant", CHANGING)
def test_base_in_16_bits_is_rounded_once_more(
    variant: str, dtype: str, model: Path, tmp_path: Path
) -> None:
    """The rest of the base is rounded again, so the saved adapter is off by about a rounding."""
    changes = {"adapter__variant": variant, "adapter__base_dtype": dtype, "precision": "bf16"}
    run = tiny.train(tmp_path / "run", model, **LORA, **changes, optimisation__max_steps=12)

    trained_loss = tiny.metric_values(run, "eval_loss")[-1]
    metrics = exported(run, "float32", "merged")[1]
    assert metrics["loss_before"] == pytest.approx(trained_loss, rel=5e-3)


@pytest.mark.parametrize("variant", CHANGING)
def test_transposed_layers_are_split_too(variant: str, tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=320, n_embd=32, n_layer=2, n_head=2, n_positions=128)
    base = tiny.write_model(tmp_path / "base", config)
    run = tiny.write_run(tmp_path / "run", base, **LORA, adapter__variant=variant)
    job = TrainingJob.prepare(load_recipe(run), run, lambda _phase: None)
    before = logits(job.model)

    torch.testing.assert_close(logits(make_model(job)), before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", CHANGING)
def test_checkpoint_fits_the_saved_adapter(variant: str, model: Path, tmp_path: Path) -> None:
    """Chat loads a checkpoint into the adapter that the run saved."""
    run = tiny.train(tmp_path / "run", model, **LORA, **STEPS, **SAVED, adapter__variant=variant)
    base = AutoModelForCausalLM.from_pretrained(model)
    served = PeftModel.from_pretrained(base, run.artifacts)
    final = logits(served)
    trainer_state.apply_weights(served, run.checkpoints / "checkpoint-6", "default")
    earlier = logits(served)
    trainer_state.apply_weights(served, run.checkpoints / "checkpoint-12", "default")

    assert not earlier.equal(final)
    assert logits(served).equal(final)


def test_rank_above_a_side_of_a_weight_is_refused(model: Path, tmp_path: Path) -> None:
    run = tiny.train(
        tmp_path / "run", model, adapter__kind="lora", adapter__r=64, adapter__variant="pissa"
    )

    failed = tiny.last_event(run)
    assert isinstance(failed, Failed)
    assert (failed.code, "adapter of rank 64" in failed.message) == ("conflict", True)


@pytest.mark.parametrize("variant", CHANGING)
def test_reference_of_a_preference_run_is_the_model_before_training(
    variant: str, model: Path, tmp_path: Path
) -> None:
    run = test_preferences.train(tmp_path / "run", model, LORA | {"adapter__variant": variant})

    assert load_recipe(run).precomputes_reference  # type: ignore[attr-defined] # a DPO recipe
    assert tiny.metric_values(run, "eval_loss")[0] == pytest.approx(0.693147, abs=1e-4)
    assert tiny.metric_values(run, "eval_reward_margin")[0] == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("variant", CHANGING)
def test_reference_scores_are_those_of_the_untouched_base(
    variant: str, model: Path, tmp_path: Path
) -> None:
    plain = LORA | {"preference__reference": "precomputed"}
    changes = {"plain": plain, variant: LORA | {"adapter__variant": variant}}
    untouched, found = (
        torch.stack(
            [
                row["reference"]
                for row in test_preferences.make_trainer(
                    test_preferences.write_run(tmp_path / name, model, knobs)
                ).train_dataset
            ]
        )
        for name, knobs in changes.items()
    )

    torch.testing.assert_close(found, untouched, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["pissa", "olora"])
def test_start_equals_pefts_own(name: str, model: Path, tmp_path: Path) -> None:
    """The product of the matrices and the rest of the base are those of upstream."""
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415 -- used only here

    run = tiny.write_run(tmp_path / "run", model, **LORA, adapter__variant=name)
    ours = make_model(TrainingJob.prepare(load_recipe(run), run, lambda _phase: None))
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=name)
    config.task_type = "CAUSAL_LM"
    theirs = get_peft_model(AutoModelForCausalLM.from_pretrained(model), config)

    rests = {key: p for key, p in theirs.named_parameters() if ".base_layer." in key}
    own = dict(ours.named_parameters())
    assert rests
    for key, rest in rests.items():
        torch.testing.assert_close(own[key], rest, rtol=1e-4, atol=1e-5)
    assert load_file(run.adapter_start).keys() == {key for key in own if ".lora_" in key}


def test_refused_recipes() -> None:
    from studio.recipe.base import find_conflict  # noqa: PLC0415 -- used only here

    quantised = tiny.recipe(**LORA, adapter__variant="pissa", adapter__base_dtype="nf4")
    off = tiny.recipe(
        **LORA, method="dpo", adapter__variant="olora", preference__reference="adapter_off"
    )

    conflicts = [find_conflict(recipe) for recipe in (quantised, off)]
    assert [conflict.param for conflict in conflicts if conflict] == [
        "adapter.variant",
        "preference.reference",
    ]


@pytest.mark.parametrize("variant", CHANGING)
def test_reference_of_a_ratings_run_is_the_model_before_training(
    variant: str, model: Path, tmp_path: Path
) -> None:
    run = test_ratings.train(tmp_path / "run", model, LORA | {"adapter__variant": variant})

    assert tiny.metric_values(run, "eval_rating_margin")[0] == pytest.approx(0, abs=1e-4)
