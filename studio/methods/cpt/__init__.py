"""Continued pre-training: the model learns to continue texts like those of a dataset."""

from typing import ClassVar, Literal

from studio.methods.base import Method, full_preset, lora_preset
from studio.metrics import EVAL_LOSS, NEXT_TOKEN, MethodMetrics, MetricSpec
from studio.recipe.base import Recipe
from studio.recipe.sections import Data, Epochs, LearningRate, MaxLength, Optimisation, Packing

PERPLEXITY = MetricSpec(
    key="eval_perplexity",
    title="Validation perplexity",
    source="eval",
    better="lower",
    is_objective=True,
    chart="Perplexity",
    is_always_drawn=True,
)


class TextOptimisation(Optimisation):
    """How fast and how long the model trains."""

    learning_rate: LearningRate = 5e-5
    """Step size. A high one makes the model forget what it knew: halve it if old skills suffer."""

    num_train_epochs: Epochs = 1.0
    """Number of passes over the texts. More than a few make the model repeat them word by word."""


class TextData(Data):
    """Every token of a text is trained on."""

    max_length: MaxLength = 2048
    """Longer texts are truncated at the end. Memory use grows with this length."""

    packing: Packing = True
    """Combine short texts into one sequence; they can't see each other. Batch size counts packed
    sequences."""


class CPTRecipe(Recipe):
    """Train on plain text: the model learns a language, a subject or a style."""

    card_verb: ClassVar[str] = "pre-trained further"
    card_tags: ClassVar[tuple[str, ...]] = ("continued-pretraining",)

    method: Literal["cpt"] = "cpt"
    optimisation: TextOptimisation = TextOptimisation()
    data: TextData = TextData()


METHOD = Method(
    name="cpt",
    title="Continued pre-training",
    purpose="Learn from text",
    summary="Train on plain text: the model learns a language, a subject or a style.",
    recipe=CPTRecipe,
    metrics=MethodMetrics((*NEXT_TOKEN.own, PERPLEXITY), objective=EVAL_LOSS),
    trains_on={"text": "Every token of a text is trained on, so the model continues text like it."},
    presets=(
        lora_preset(),
        full_preset(1e-5),
    ),
)
