"""Adapters that start with what quantising has rounded away, in real runs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from transformers import AutoModelForCausalLM, GPT2Config

from studio.errors import TrainingError
from studio.protocols.events import Finished, Started
from studio.recipe.base import find_conflict
from studio.recipe.precision import QUANTISED
from studio.runner.execution import execute_run
from studio.runner.training_run import load_recipe
from studio.training.job import TrainingJob
from studio.training.models import adapter_base, loftq, weight_formats
from studio.training.stop_handler import StopHandler
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.export.test_export import exported
from tests.training.runs import test_preferences

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LOFTQ: dict[str, Any] = {
    "adapter__kind": "lora",
    "adapter__variant": "loftq",
    "adapter__base_dtype": "nf4",
    "precision": "bf16",
}
GPT2 = GPT2Config(vocab_size=320, n_embd=64, n_layer=2, n_head=2, n_positions=128)


def errors(base: Path, root: Path, **changes: object) -> list[tuple[float, float, float]]:
    """Return each layer's quantisation error: alone, with the adapter, and the best possible."""
    run = tiny.write_run(root, base, **LOFTQ | changes)
    job = TrainingJob.prepare(load_recipe(run), run, lambda _phase: None)
    model: PeftModel = get_peft_model(job.model, job.adapter)
    loftq.initialise(model, weight_formats.weight_files(job.spec.model))
    saved = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    found = []
    layers: list[tuple[str, Any]] = [
        (name, part) for name, part in model.named_modules() if isinstance(part, LoraLayer)
    ]
    for name, layer in layers:
        inner = layer.get_base_layer()
        weight = saved.get_submodule(name.removeprefix("base_model.model.")).weight.data
        weight = weight.T if base.name == "gpt2" else weight
        rounding = weight - adapter_base.dequantised_value(inner, inner.weight).float()
        rest = torch.linalg.svdvals(rounding)[len(layer.lora_A["default"].weight) :]
        with_adapter = rounding - layer.get_delta_weight("default").float()
        found.append((float(rounding.norm()), float(with_adapter.norm()), float(rest.norm())))
    return found


@pytest.mark.smoke
@pytest.mark.parametrize("scaling", [False, True], ids=["alpha", "rank-stabilised"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_start_is_the_best_correction_of_its_rank(
    family: str, *, scaling: bool, tmp_path: Path
) -> None:
    base = tiny.write_model(tmp_path / family, GPT2 if family == "gpt2" else tiny.llama())
    found = errors(base, tmp_path / "run", adapter__r=4, adapter__use_rslora=scaling)

    assert found
    for alone, corrected, best in found:
        assert corrected < alone
        assert corrected == pytest.approx(best, rel=1e-3)


@pytest.mark.parametrize("base_dtype", QUANTISED)
def test_run_learns_and_is_merged_into_what_it_was_trained_on(
    base_dtype: str, model: Path, tmp_path: Path
) -> None:
    changes = {"adapter__base_dtype": base_dtype}
    run = tiny.train(tmp_path / "run", model, **LOFTQ | changes, optimisation__max_steps=12)
    told, losses = tiny.events_of(run, Started)[0].resolved, tiny.metric_values(run, "eval_loss")
    measured = exported(run, "float32", "merged")[1]

    assert isinstance(tiny.last_event(run), Finished)
    assert losses[-1] < losses[0] - 0.1
    assert {name: told["audit"][name] for name in told["plan"]} == told["plan"]
    near = 1e-3 if base_dtype == "int8" else 1e-5
    assert measured["loss_after"] == pytest.approx(measured["loss_before"], rel=near)


def test_resumed_run_equals_uninterrupted_run(model: Path, tmp_path: Path) -> None:
    whole = tiny.train(tmp_path / "whole", model, **LOFTQ, **STEPS, **SAVED)
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


def test_reference_of_a_preference_run_is_the_model_before_training(
    model: Path, tmp_path: Path
) -> None:
    run = test_preferences.train(tmp_path / "run", model, LOFTQ)

    assert load_recipe(run).precomputes_reference  # type: ignore[attr-defined] # a DPO recipe
    assert tiny.metric_values(run, "eval_reward_margin")[0] == pytest.approx(0, abs=1e-2)


def test_weights_under_other_names_are_refused(model: Path, tmp_path: Path) -> None:
    run = tiny.write_run(tmp_path / "run", model, **LOFTQ)
    job = TrainingJob.prepare(load_recipe(run), run, lambda _phase: None)

    with pytest.raises(TrainingError, match=r"no weight named model\.layers\.0"):
        loftq.initialise(get_peft_model(job.model, job.adapter), [])


def test_refused_recipes() -> None:
    recipes = [
        tiny.recipe(**LOFTQ | {"adapter__base_dtype": "native"}),
        tiny.recipe(**LOFTQ, adapter__continue_from="run-1"),
        tiny.recipe(**LOFTQ, method="dpo", preference__reference="adapter_off"),
    ]

    conflicts = [find_conflict(recipe) for recipe in recipes]
    assert [conflict.param for conflict in conflicts if conflict] == [
        "adapter.variant",
        "adapter.variant",
        "preference.reference",
    ]
