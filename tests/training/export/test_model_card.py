"""The card of a model tells what it is without telling where it was made."""

from typing import Any

import yaml

from studio.methods.sft import SFTRecipe
from studio.training import model_card

RESOLVED: dict[str, Any] = {
    "weights": "float32",
    "compute": "bfloat16",
    "gradients": "float32",
    "optimizer_states": "float32",
    "scaler": False,
    "device": "cpu",
    "train_rows": 9,
    "train_examples": 9,
    "validation_rows": 1,
    "dropped_rows": 0,
    "truncated_rows": 0,
    "train_tokens": 1234,
    "trainable_parameters": 56_789,
    "versions": {"torch": "2"},
}


def written(base_model: str) -> str:
    recipe = SFTRecipe(base_model=base_model, dataset="sums", precision="bf16")
    return model_card.build_run_card("Sums", recipe, RESOLVED, {"eval_loss": 0.25}, [])


def test_card_metadata_links_hub_base_model() -> None:
    front = yaml.safe_load(written("some/model").split("---")[1])

    assert front == {
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "tags": ["mantissa-studio", "sft", "lora", "bf16"],
        "base_model": "some/model",
    }


def test_card_names_local_model_without_path() -> None:
    text = written("/home/somebody/models/mine")

    assert "/home/somebody" not in text
    assert "`mine` fine-tuned" in text


def test_card_lists_results_in_table() -> None:
    assert "| eval loss | 0.25 |" in written("some/model")
