"""Recipes from before a setting existed train as they did: upstream gets the same arguments."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig
from trl import SFTConfig

from studio.methods import METHODS, RECIPE_ADAPTER, AnyRecipe
from studio.recipe.base import find_conflict, unusable_values
from studio.runner.training_run import load_recipe
from studio.training.job import TrainingJob
from studio.training.run_trainer import build_arguments
from tests.training import tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

_LORA: dict[str, Any] = {
    "kind": "lora",
    "r": 8,
    "lora_alpha": 16,
    "lora_dropout": 0.0,
    "target_modules": "all-linear",
    "use_rslora": False,
}
"""All settings that LoRA had in the first version, except for the frozen model's format."""

_OPTIMISATION: dict[str, Any] = {
    "learning_rate": 2e-4,
    "num_train_epochs": 3.0,
    "max_steps": 3,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.03,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "optim": "adamw_torch_fused",
    "train_sampling_strategy": "group_by_length",
    "activation_checkpointing": False,
    "seed": 42,
}
_EVALUATION: dict[str, Any] = {
    "eval_steps": 0.1,
    "per_device_eval_batch_size": 16,
    "logging_steps": 1,
}


def earlier_recipe(method: str, adapter: dict[str, Any]) -> AnyRecipe:
    values = {
        "version": 1,
        "method": method,
        "base_model": "tiny",
        "dataset": "sums",
        "precision": "fp32",
        "optimisation": _OPTIMISATION | {"max_minutes": None},
        "adapter": adapter,
        "data": {
            "max_length": 1024,
            "packing": False,
            "chat_template": "model",
            "validation_share": 0.2,
        },
        "evaluation": _EVALUATION,
        "samples": {"prompts": 0, "between": 4, "max_new_tokens": 64},
    }
    return RECIPE_ADAPTER.validate_python(values)


def prepare(folder: Path, model: Path, recipe: AnyRecipe) -> TrainingJob:
    # A model's own options have the name of an argument, and are newer than these recipes.
    run = tiny.write_run(folder, model, **recipe.model_dump(exclude={"model"}))
    assert load_recipe(run) == recipe
    return TrainingJob.prepare(recipe, run, lambda _phase: None)


@pytest.mark.parametrize("method", ["sft", "cpt"])
def test_upstream_gets_the_same_arguments(method: str, model: Path, tmp_path: Path) -> None:
    recipe = earlier_recipe(method, {"kind": "full"})
    job = prepare(tmp_path / "run", model, recipe)
    args = build_arguments(recipe, job, METHODS[method].objective)
    earlier = SFTConfig(
        output_dir=str(job.run_dir.checkpoints),
        **_OPTIMISATION,
        **_EVALUATION,
        **job.mode.trainer_flags,
        save_strategy="no",
        eval_strategy="steps",
        eval_on_start=True,
        max_length=1024,
        dataset_kwargs={"skip_prepare_dataset": True},
        use_cpu=args.use_cpu,
        logging_nan_inf_filter=False,
        disable_tqdm=True,
        report_to=[],
    )
    assert args.to_dict() == earlier.to_dict()
    assert find_conflict(recipe) is None
    assert list(unusable_values(recipe)) == []


def test_peft_gets_the_same_config(model: Path, tmp_path: Path) -> None:
    job = prepare(tmp_path / "run", model, earlier_recipe("sft", _LORA | {"base_dtype": "native"}))
    earlier = {name: value for name, value in _LORA.items() if name != "kind"}

    assert job.adapter is not None
    assert asdict(job.adapter) == asdict(LoraConfig(task_type="CAUSAL_LM", **earlier))
