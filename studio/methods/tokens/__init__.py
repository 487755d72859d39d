"""Token classification: the model learns which words of a text are entities, and of which kind."""

from dataclasses import replace
from typing import ClassVar, Literal

from studio.intake.quality.answer_facts import tag_problem
from studio.methods.base import Method, full_preset, lora_preset, quick_preset
from studio.methods.heads import SCORABLE, HeadRecipe, HeadSection
from studio.metrics import EVAL_LOSS, LOSS, MethodMetrics, MetricSpec
from studio.recipe.base import Outputs
from studio.weights.architectures import SCORING_TOKENS
from studio.weights.encoders import ENCODERS


class Entities(HeadSection):
    """How entities are learned."""


class TokensRecipe(HeadRecipe):
    """Find entities: the model reads a text, and learns which of its words are of which kind."""

    card_verb: ClassVar[str] = "trained to find entities"
    card_tags: ClassVar[tuple[str, ...]] = ("named-entity-recognition",)
    outputs: ClassVar[Outputs] = "entities"

    method: Literal["tokens"] = "tokens"
    entities: Entities = Entities()

    @property
    def head(self) -> Entities:
        return self.entities


TAG_ACCURACY = MetricSpec(
    key="tag_accuracy",
    title="Right tags",
    source="train",
    better="higher",
    chart="Right tags",
)
EVAL_TAG_ACCURACY = replace(
    TAG_ACCURACY,
    key="eval_tag_accuracy",
    title="Validation right tags",
    source="eval",
    is_objective=True,
    note="Most words belong to no entity: a model that finds none can have a high share here. "
    "Watch the F1 score of entities.",
)
EVAL_ENTITY_F1 = MetricSpec(
    key="eval_entity_f1",
    title="Validation F1 of entities",
    source="eval",
    better="higher",
    is_objective=True,
    chart="Entities found",
    note="An entity counts as found only if its first word, its last word and its label are all "
    "right, as in CoNLL-2003.",
    is_always_drawn=True,
    tile="always",
)
BEST_EVAL_ENTITY_F1 = MetricSpec(
    key="best_eval_entity_f1",
    title="Best validation F1 of entities",
    better="higher",
    chart="-",
)
EVAL_ENTITY_PRECISION = MetricSpec(
    key="eval_entity_precision",
    title="Validation precision of entities",
    source="eval",
    better="higher",
    is_objective=True,
    chart="Entities found",
    tile="result",
)
"""The share of the entities that the model finds that are right."""
EVAL_ENTITY_RECALL = MetricSpec(
    key="eval_entity_recall",
    title="Validation recall of entities",
    source="eval",
    better="higher",
    is_objective=True,
    chart="Entities found",
    tile="result",
)
"""The share of the entities in the data that the model finds."""

METHOD = Method(
    name="tokens",
    title="Token classification",
    purpose="Learn to find entities",
    summary="Train a model that marks names, dates and other entities in a text.",
    recipe=TokensRecipe,
    metrics=MethodMetrics(
        (
            EVAL_ENTITY_F1,
            BEST_EVAL_ENTITY_F1,
            EVAL_ENTITY_PRECISION,
            EVAL_ENTITY_RECALL,
            EVAL_TAG_ACCURACY,
            TAG_ACCURACY,
            *(replace(spec, unit="nats") for spec in (LOSS, EVAL_LOSS)),
        ),
        objective=EVAL_ENTITY_F1,
    ),
    trainable_kinds=SCORABLE,
    families=SCORING_TOKENS | frozenset(ENCODERS),
    trains_on={"tokens": "The model reads each text, and learns which of its words are entities."},
    answer_problem=tag_problem,
    presets=(
        quick_preset(1e-3, epochs=20.0, validation_share=0.2),
        lora_preset(),
        full_preset(5e-5),
    ),
)
