"""Embeddings: the model learns to give texts that belong together similar vectors."""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

from annotated_types import Ge, Gt, Le
from pydantic import Field

from studio.methods import regress
from studio.methods.base import Method, full_preset, lora_preset, quick_preset
from studio.methods.heads import SCORABLE, SCORABLE_FAMILIES
from studio.metrics import EVAL_LOSS, LOSS, MethodMetrics, MetricSpec
from studio.recipe.base import Outputs, Recipe
from studio.recipe.fields import FieldSpec, Section
from studio.recipe.sections import (
    Data,
    LearningRate,
    MaxLength,
    NoEvaluation,
    NoSamples,
    Optimisation,
    SamplingStrategy,
)
from studio.recipe.vectors import Pooling, Vectors
from studio.weights.adapter_targets import parse_names

LossName = Literal["automatic", "ranking", "triplet", "cosent"]
Prompt = Annotated[str, Field(max_length=200)]


class VectorOptimisation(Optimisation):
    """How fast and how long the model trains."""

    learning_rate: LearningRate = 1e-4
    """Step size. Halve it if the loss jumps around; double it if the loss barely moves."""

    per_device_train_batch_size: Annotated[
        int, Ge(1), Le(4096), FieldSpec("Batch size", "rows", related=("embedding.mini_batch",))
    ] = 32
    """Rows per device in each step. Each text is compared with the texts of all other rows, so
    larger batches teach more. If they do not fit into memory, set the mini-batch."""

    train_sampling_strategy: SamplingStrategy = "random"
    """Random order compares each text with any others. Grouping by length avoids time spent on
    padding, and compares texts that are alike: harder, and rarely better."""


class TextData(Data):
    """Each text is read by itself."""

    max_length: MaxLength = 512
    """Longer texts are truncated at the end. Memory use grows with this length."""

    packing: Literal[False] = False
    chat_template: Literal["none"] = "none"  # type: ignore[assignment] # not a chat


class Embedding(Section):
    """How texts become vectors, and how these are compared."""

    loss_type: Annotated[
        LossName,
        FieldSpec(
            "Loss",
            choice_titles={
                "automatic": "By the data",
                "ranking": "Ranking (MNRL, InfoNCE)",
                "triplet": "Triplet",
                "cosent": "CoSENT, for scores",
            },
        ),
    ] = "automatic"
    """Ranking suits pairs that match, with or without texts that do not; CoSENT suits pairs with
    scores: by the data, one of these is chosen. Triplet needs texts that do not match, and compares
    with them alone."""

    pooling: Annotated[
        Pooling,
        FieldSpec(
            "Pooling",
            choice_titles={
                "mean": "Mean of all tokens",
                "cls": "First token",
                "last": "Last token",
            },
        ),
    ] = "mean"
    """Which tokens the vector of a text is made of. Keep what an embedding model was made with. In
    a causal model, the first token has read nothing but itself."""

    query_prompt: Annotated[Prompt, FieldSpec("Prompt of queries")] = ""
    """Written before each first text, such as `query:`. The model then needs it before each query:
    it is saved with the model."""

    passage_prompt: Annotated[Prompt, FieldSpec("Prompt of passages")] = ""
    """Written before all other texts, such as `passage:`."""

    negatives: Annotated[int, Ge(0), Le(16), FieldSpec("Own negatives", advanced=True)] = 1
    """How many of its own texts that do not match are read with each row, if it has any. More teach
    finer differences, and take more memory."""

    scale: Annotated[float, Gt(0), Le(1000), FieldSpec("Scale", advanced=True)] = 20.0
    """Ranking and CoSENT multiply similarities by this: the inverse of the temperature."""

    margin: Annotated[float, Gt(0), Le(2), FieldSpec("Margin", advanced=True)] = 0.3
    """Triplet only: by how much the matching text must be more similar than the other."""

    dimensions: Annotated[
        str | None,
        Field(max_length=200, pattern=r"^\s*[1-9]\d{0,5}\s*(,\s*[1-9]\d{0,5}\s*)*$"),
        FieldSpec("Shorter vectors (Matryoshka)", advanced=True),
    ] = None
    """Lengths at which the start of a vector is to be a good vector, too, such as `256, 64`. Users
    of the model can then keep only that many numbers."""

    mini_batch: Annotated[
        int | None,
        Ge(1),
        Le(4096),
        FieldSpec(
            "Mini-batch",
            "texts",
            advanced=True,
            related=("optimisation.per_device_train_batch_size",),
        ),
    ] = None
    """Compute that many texts at a time, twice: a step takes a third longer, and large batches fit
    into little memory. The gradients stay the same (cached MNRL)."""

    @property
    def shorter_sizes(self) -> tuple[int, ...]:
        """The lengths of shorter vectors, each once."""
        return tuple(map(int, parse_names(self.dimensions)))


class EmbedRecipe(Recipe):
    """Learn similarity: the model reads pairs, and learns to give what matches similar vectors."""

    card_verb: ClassVar[str] = "trained to embed texts"
    card_tags: ClassVar[tuple[str, ...]] = ("sentence-transformers", "feature-extraction")
    reads_pairs: ClassVar[bool] = True
    outputs: ClassVar[Outputs] = "vector"

    method: Literal["embed"] = "embed"
    embedding: Embedding = Embedding()
    optimisation: VectorOptimisation = VectorOptimisation()
    data: TextData = TextData()
    evaluation: NoEvaluation = NoEvaluation()
    samples: NoSamples = NoSamples()

    @property
    def vectors(self) -> Vectors:
        settings = self.embedding
        return Vectors(
            pooling=settings.pooling,
            query_prompt=settings.query_prompt,
            passage_prompt=settings.passage_prompt,
            shorter_sizes=settings.shorter_sizes,
        )

    @property
    def pair_prompts(self) -> tuple[str, str]:
        return self.embedding.query_prompt, self.embedding.passage_prompt

    @property
    def negatives(self) -> int:
        return self.embedding.negatives

    @property
    def mini_batch(self) -> int | None:
        return self.embedding.mini_batch

    @property
    def extra_sequences(self) -> int:
        return self.embedding.negatives

    def with_negatives(self, most: int) -> Self:
        fewer = {"negatives": min(self.negatives, max(0, most))}
        return self.model_copy(update={"embedding": self.embedding.model_copy(update=fewer)})


EVAL_NDCG = MetricSpec(
    key="eval_ndcg_at_10",
    title="Validation nDCG@10",
    source="eval",
    better="higher",
    is_objective=True,
    chart="Retrieval",
    note="Each first text of the validation rows searches among all their second texts. nDCG@10 is "
    "1 if all that match come first, and 0 if none is among the first ten.",
    is_always_drawn=True,
    tile="always",
)
BEST_EVAL_NDCG = MetricSpec(
    key="best_eval_ndcg_at_10", title="Best validation nDCG@10", better="higher", chart="-"
)
EVAL_MRR = MetricSpec(
    key="eval_mrr_at_10",
    title="Validation MRR@10",
    source="eval",
    better="higher",
    is_objective=True,
    chart="Retrieval",
    is_always_drawn=True,
    tile="always",
)
"""The mean over the first texts of 1 / the rank of the first match; 0 if it is beyond the tenth."""
EVAL_TOP1 = MetricSpec(
    key="eval_top1_accuracy",
    title="Validation accuracy@1",
    source="eval",
    better="higher",
    is_objective=True,
    chart="First result right",
    tile="result",
)
"""How often the most similar text matches."""
RETRIEVAL = (EVAL_NDCG, BEST_EVAL_NDCG, EVAL_MRR, EVAL_TOP1)

METHOD = Method(
    name="embed",
    title="Embeddings",
    purpose="Learn similarity",
    summary="Train a model that turns texts into vectors, for search, clustering and duplicates.",
    recipe=EmbedRecipe,
    metrics=MethodMetrics(
        (
            *RETRIEVAL,
            regress.EVAL_SPEARMAN,
            *(replace(spec, unit="") for spec in (LOSS, EVAL_LOSS)),
        ),
        objective=EVAL_NDCG,
    ),
    trainable_kinds=SCORABLE | {"embedding"},
    families=SCORABLE_FAMILIES,
    trains_on={
        "pairs": "Texts that belong together get similar vectors, others do not; or as similar as "
        "their score says.",
        "conversation": "The last answer of each conversation is the text that matches what comes "
        "before it.",
    },
    presets=(
        quick_preset(5e-4, validation_share=0.1, adapter={"kind": "full"}),
        lora_preset(),
        full_preset(2e-5),
    ),
    sequences_per_row=2,
)
