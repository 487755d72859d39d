"""Rerankers: the model reads a query with a text, and learns how well the text matches."""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le

from studio.methods import classify, embed
from studio.methods.base import Method, full_preset, lora_preset, quick_preset
from studio.methods.embed import TextData
from studio.methods.heads import SCORABLE, SCORABLE_FAMILIES, HeadRecipe, HeadSection
from studio.metrics import EVAL_LOSS, LOSS, MethodMetrics
from studio.recipe.base import Outputs
from studio.recipe.fields import FieldSpec


class Reranking(HeadSection):
    """Which texts are compared with each query."""

    negatives: Annotated[int, Ge(1), Le(64), FieldSpec("Texts that do not match")] = 4
    """How many are read with each query: the row's own ones first, then texts of other rows. More
    teach finer differences, and take longer. Pairs with scores need none."""

    positive_weight: Annotated[
        float, Gt(0), Le(100), FieldSpec("Weight of matches", advanced=True)
    ] = 1.0
    """How much a text that matches counts against one that does not. Raise it if matches are
    missed: with 4 texts that do not match, a weight of 4 lets both kinds count equally."""


class RerankRecipe(HeadRecipe):
    """Learn to rank: the model reads a query with a text, and learns how well the text matches."""

    card_verb: ClassVar[str] = "trained to rerank texts"
    card_tags: ClassVar[tuple[str, ...]] = ("cross-encoder", "reranker", "sentence-transformers")
    reads_pairs: ClassVar[bool] = True
    fills_negatives: ClassVar[bool] = True
    outputs: ClassVar[Outputs] = "relevance"

    method: Literal["rerank"] = "rerank"
    reranking: Reranking = Reranking()
    data: TextData = TextData()

    @property
    def head(self) -> Reranking:
        return self.reranking

    @property
    def negatives(self) -> int:
        return self.reranking.negatives


_NOTE = (
    "Each query of the validation rows ranks its own texts: those that match, and those that do "
    "not. nDCG@10 is 1 if all that match come first."
)
EVAL_NDCG = replace(embed.EVAL_NDCG, note=_NOTE)
EVAL_ACCURACY = replace(classify.EVAL_ACCURACY, note="")

METHOD = Method(
    name="rerank",
    title="Reranking",
    purpose="Learn to rank",
    summary="Train a model that reads a query with a text, and says how well the text matches.",
    recipe=RerankRecipe,
    metrics=MethodMetrics(
        (
            EVAL_NDCG,
            embed.BEST_EVAL_NDCG,
            embed.EVAL_MRR,
            EVAL_ACCURACY,
            *(replace(spec, unit="nats") for spec in (LOSS, EVAL_LOSS)),
        ),
        objective=EVAL_NDCG,
    ),
    trainable_kinds=SCORABLE,
    families=SCORABLE_FAMILIES,
    trains_on={
        "pairs": "The model reads each first text with those that match and those that do not, or "
        "learns the score of the pair.",
        "conversation": "The last answer of each conversation matches what comes before it; those "
        "of other conversations do not.",
    },
    presets=(
        quick_preset(1e-3, validation_share=0.1, adapter={"kind": "full"}),
        lora_preset(),
        full_preset(2e-5),
    ),
)
