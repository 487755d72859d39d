"""Supervised fine-tuning: the model learns to write the answers in its examples."""

from typing import Annotated, Literal

from annotated_types import Gt, Le

from studio import metrics
from studio.intake.mapping import ShapeName
from studio.methods.base import Method, Preset, full_preset, lora_preset
from studio.recipe.base import Recipe
from studio.recipe.fields import FieldSpec
from studio.recipe.sections import Optimisation


class AnswerOptimisation(Optimisation):
    """How fast and how long the model trains."""

    loss_type: Annotated[
        Literal["nll", "dft"],
        FieldSpec(
            "Training loss",
            advanced=True,
            choice_titles={"nll": "Cross-entropy", "dft": "Dynamic fine-tuning (DFT)"},
        ),
    ] = "nll"
    """DFT weighs each token by the probability that the model gives it, so unlikely tokens change
    it less: it keeps more of what it knew, and learns new facts worse. The validation loss stays
    the cross-entropy."""

    neftune_noise_alpha: Annotated[
        float | None, Gt(0), Le(100), FieldSpec("NEFTune noise", advanced=True)
    ] = None
    """Adds noise to the token embeddings during training, against learning answers by heart. 5 is
    usual. Leave empty for none."""


class SFTRecipe(Recipe):
    """Train by example: the model reads conversations and learns the assistant's answers."""

    method: Literal["sft"] = "sft"
    optimisation: AnswerOptimisation = AnswerOptimisation()


_IGNORED: dict[ShapeName, str] = {
    "preference": "Rejected answers are not used: the model learns to write the preferred ones, "
    "but not what makes an answer worse.",
    "ranked": "Only the best answer of each row is used. The other answers, scores and ranks are "
    "not: the model does not learn what makes an answer worse.",
    "judged": "Answers rated bad are not used: the model learns to write the good ones, but not "
    "what makes an answer bad.",
    "thread": "Every branch of a thread becomes a separate conversation. Which of several replies "
    "was preferred is not used: all are trained on equally.",
    "regression": "Numbers are trained on as text: an answer that is nearly right counts no better "
    "than one that is far off.",
}

METHOD = Method(
    name="sft",
    title="Supervised",
    purpose="Learn from answers",
    summary="Train by example: provide prompts with the answers you want.",
    recipe=SFTRecipe,
    metrics=metrics.NEXT_TOKEN,
    trains_on={
        "conversation": "SFT trains on the assistant's turns; the other turns are only context.",
        "text": "SFT trains on every token of the text, so the model continues text like it.",
        "preference": "SFT trains on the preferred answer of each pair.",
        "judged": "SFT trains on the answers rated good.",
    },
    ignores=_IGNORED,
    openai_type="supervised",
    presets=(
        Preset(
            name="quick",
            title="Quick start",
            summary="The starter model, as many steps as fit into a minute.",
            is_for_starter=True,
            values={
                "base_model": "starter",
                "dataset": "starter",
                "optimisation": {
                    "learning_rate": 3e-3,
                    "num_train_epochs": 4.0,
                    "max_minutes": 1.0,
                    "per_device_train_batch_size": 16,
                },
                "adapter": {"kind": "full"},
                "data": {"max_length": 256},
                "evaluation": {"eval_steps": 0.25, "per_device_eval_batch_size": 64},
                "samples": {"prompts": 6, "between": 3, "max_new_tokens": 24},
            },
        ),
        lora_preset(dataset="starter"),
        full_preset(2e-5, dataset="starter"),
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
