"""Supervised fine-tuning: the model learns to write the answers in its examples."""

from typing import Literal

from studio import metrics
from studio.methods.base import Method, Preset
from studio.recipe.base import Recipe


class SFTRecipe(Recipe):
    """Train by example: the model reads conversations and learns the assistant's answers."""

    method: Literal["sft"] = "sft"


SFT = Method(
    name="sft",
    title="Supervised",
    summary="Train by example: provide prompts with the answers you want.",
    recipe=SFTRecipe,
    metrics=metrics.NEXT_TOKEN,
    presets=(
        Preset(
            name="quick",
            title="Quick start",
            summary="The starter model on the starter dataset: tries every step in about a minute.",
            values={
                "base_model": "starter",
                "dataset": "starter",
                "optimisation": {
                    "learning_rate": 3e-3,
                    "num_train_epochs": 2.0,
                    "per_device_train_batch_size": 32,
                },
                "adapter": {"kind": "full"},
                "data": {"max_length": 256},
                "samples": {"prompts": 6, "max_new_tokens": 48},
            },
        ),
        Preset(
            name="lora",
            title="Balanced LoRA",
            summary="A small adapter on any model: the best default for one GPU.",
            values={"base_model": "starter", "dataset": "starter"},
        ),
        Preset(
            name="full",
            title="Full fine-tune",
            summary="Trains every weight: learns the most, needs the most memory.",
            values={
                "base_model": "starter",
                "dataset": "starter",
                "optimisation": {"learning_rate": 2e-5},
                "adapter": {"kind": "full"},
            },
        ),
        Preset(
            name="study",
            title="Precision study",
            summary="One recipe in several precisions with several seeds: compare what each "
            "precision costs.",
            is_study=True,
            values={
                "base_model": "starter",
                "dataset": "starter",
                "optimisation": {
                    "learning_rate": 3e-3,
                    "max_steps": 60,
                    "per_device_train_batch_size": 32,
                },
                "adapter": {"kind": "full"},
                "data": {"max_length": 256},
            },
        ),
    ),
)
