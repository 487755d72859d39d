"""Sequence to sequence: an encoder-decoder model learns to write a text for each text it reads."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le
from pydantic import Field

from studio.methods.base import Method, full_preset, lora_preset, without_base
from studio.metrics import NEXT_TOKEN, MethodMetrics, MetricSpec
from studio.recipe.adapters import Lora
from studio.recipe.base import BeamSearch, Conflict, Outputs, Recipe
from studio.recipe.fields import FieldSpec, Section
from studio.recipe.sections import Data, LearningRate, MaxLength, Optimisation
from studio.weights import language_codes
from studio.weights.language_codes import Languages

FAMILIES = (
    frozenset({"t5", "mt5", "umt5", "longt5", "bart", "marian", "pegasus"})
    | language_codes.MULTILINGUAL
)
"""Families that are trained in tests. Others balance experts, or are not tested."""

MAX_BEAMS = 32


class PairOptimisation(Optimisation):
    """How fast and how long the model trains."""

    learning_rate: LearningRate = 3e-4
    """Step size. T5 likes larger steps than other models. Halve it if the loss jumps around; double
    it if the loss barely moves."""


class PairData(Data):
    """The model reads a prompt, and learns the answer."""

    max_length: MaxLength = 512
    """Longer prompts and longer answers are truncated at the end. Memory use grows with this
    length."""

    packing: Literal[False] = False
    chat_template: Literal["none"] = "none"  # type: ignore[assignment] # not a chat


class Rewriting(Section):
    """How answers are learned and judged."""

    source_language: Annotated[
        str | None,
        Field(max_length=20, pattern=r"^\w+$"),
        FieldSpec("Source language", advanced=True),
    ] = None
    """The language of prompts, by its code in the tokenizer: `en_XX` in mBART, `eng_Latn` in NLLB.
    Only for models that translate between many languages."""

    target_language: Annotated[
        str | None,
        Field(max_length=20, pattern=r"^\w+$"),
        FieldSpec("Target language", advanced=True),
    ] = None
    """The language of answers, in the same way."""

    label_smoothing: Annotated[
        float, Ge(0), Le(0.5), FieldSpec("Label smoothing", advanced=True)
    ] = 0.0
    """Keeps the model from being too sure of the words in the data. 0.1 is usual for translation.
    The validation loss stays the cross-entropy."""

    judged_answers: Annotated[int, Ge(0), Le(1000), FieldSpec("Answers to judge")] = 32
    """How many validation prompts the model answers at each validation, to compare its answers with
    those of the data. More are more exact, and take longer. 0 turns this off."""

    num_beams: Annotated[int, Ge(1), Le(MAX_BEAMS), FieldSpec("Beams")] = 1
    """How many drafts of an answer the model follows at a time, to write the most probable one. 1
    always takes the most probable next token; 4 is usual for translation and summaries, and takes
    about 4 times as long. It changes how answers are written, not what is learned."""

    length_penalty: Annotated[
        float, Ge(-10), Le(10), FieldSpec("Length penalty", advanced=True)
    ] = 1.0
    """With several beams: above 0 prefers longer answers, below 0 shorter ones."""


class Seq2SeqRecipe(Recipe):
    """Learn to rewrite: the model reads a text, and learns to write another one."""

    card_verb: ClassVar[str] = "trained to rewrite texts"
    outputs: ClassVar[Outputs] = "rewrite"

    method: Literal["seq2seq"] = "seq2seq"
    rewriting: Rewriting = Rewriting()
    optimisation: PairOptimisation = PairOptimisation()
    data: PairData = PairData()

    @property
    def search(self) -> BeamSearch:
        return BeamSearch(self.rewriting.num_beams, self.rewriting.length_penalty)

    @property
    def languages(self) -> Languages | None:
        source, target = self.rewriting.source_language, self.rewriting.target_language
        return Languages(source, target) if source and target else None

    def own_conflicts(self) -> Iterator[Conflict]:
        if (self.rewriting.source_language is None) != (self.rewriting.target_language is None):
            yield Conflict(
                message="Only one of the two languages is set.",
                hint="Set the source and the target language, or neither.",
                param="rewriting.target_language",
            )
        if self.rewriting.num_beams == 1 and self.rewriting.length_penalty != 1:
            yield Conflict(
                message="The length penalty has no effect with 1 beam.",
                hint="Use at least 2 beams, or leave the length penalty at 1.",
                param="rewriting.length_penalty",
            )
        if isinstance(self.adapter, Lora) and self.adapter.lora_variant.reads_data:
            yield Conflict(
                message=f"{self.adapter.lora_variant.title} cannot start an adapter of an "
                "encoder-decoder model.",
                hint="Choose plain LoRA.",
                param="adapter.variant",
            )


EVAL_CHRF = MetricSpec(
    key="eval_chrf_share",
    title="Validation chrF",
    source="eval",
    better="higher",
    is_objective=True,
    chart="Answers like those of the data",
    is_always_drawn=True,
    tile="always",
)
"""How similar answers are to those of the data, by the groups of characters they share."""
EVAL_EXACT = MetricSpec(
    key="eval_exact_share",
    title="Exact answers",
    source="eval",
    better="higher",
    is_objective=True,
    chart="Answers like those of the data",
    tile="always",
)
"""How many answers equal those of the data."""


METHOD = Method(
    name="seq2seq",
    title="Sequence to sequence",
    purpose="Learn to rewrite texts",
    summary="Train an encoder-decoder model, such as T5 or BART, to translate, summarise or "
    "correct texts.",
    recipe=Seq2SeqRecipe,
    metrics=MethodMetrics((*NEXT_TOKEN.own, EVAL_CHRF, EVAL_EXACT), objective=NEXT_TOKEN.objective),
    trainable_kinds=frozenset({"encoder_decoder"}),
    families=FAMILIES,
    trains_on={
        "conversation": "The last answer of each conversation is what the model learns to write, "
        "and what comes before is what it reads."
    },
    presets=tuple(without_base(preset) for preset in (lora_preset(), full_preset(1e-4))),
)
