"""Continued pre-training: the model learns to continue texts like those of a dataset."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt, Le

from studio.methods.base import Method, full_preset, lora_preset
from studio.metrics import EVAL_LOSS, NEXT_TOKEN, MethodMetrics, MetricSpec
from studio.recipe.base import Conflict, Recipe
from studio.recipe.fields import FieldSpec
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

    embedding_learning_rate: Annotated[
        float | None,
        Gt(0),
        Le(1),
        FieldSpec(
            "Embedding learning rate",
            advanced=True,
            is_studio_own=True,
            usable_range=(1e-12, 1),
        ),
    ] = None
    """Step size of the token embeddings in a full fine-tune. Usually 2 to 10 times smaller than
    the learning rate. Leave empty to use the learning rate."""


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

    def own_conflicts(self) -> Iterator[Conflict]:
        """Yield settings that only make sense in a full fine-tune."""
        if self.optimisation.embedding_learning_rate is not None and self.adapter.kind != "full":
            yield Conflict(
                message="An adapter does not train the embeddings, so they have no learning rate.",
                hint="Choose a full fine-tune, or leave the embedding learning rate empty.",
                param="optimisation.embedding_learning_rate",
            )


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
