"""Distillation: a student learns the probabilities that its teacher gives each next token."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

from annotated_types import Ge, Gt, Le
from pydantic import Field

from studio import metrics
from studio.methods.base import Method, full_preset, lora_preset
from studio.methods.sft import METHOD as SUPERVISED
from studio.metrics import MethodMetrics, MetricSpec
from studio.recipe.base import Conflict, Recipe, Teacher, TeacherFormat
from studio.recipe.fields import FieldSpec, Section
from studio.recipe.sections import LearningRate, Optimisation

CPU_CHUNK_VALUES, GPU_CHUNK_VALUES = 2**22, 2**25
"""How many logits of each model exist at a time, in float32."""


class Distillation(Section):
    """Who teaches, and how student and teacher are compared."""

    teacher: Annotated[
        str | None, Field(max_length=1000), FieldSpec("Teacher", names_model=True)
    ] = None
    """The model to learn from: one of your models, such as `run-12`, a folder on this machine, or a
    model on the Hugging Face hub. It needs the tokenizer of the base model. It is only read."""

    answers: Annotated[
        Literal["given", "student"],
        FieldSpec(
            "Answers",
            choice_titles={"given": "Those of the dataset", "student": "The student's own"},
        ),
    ] = "given"
    """On which answers the two are compared. Those of the dataset need no writing. The student's
    own, written for each step, correct the mistakes that it really makes, and take much longer
    (on-policy distillation)."""

    beta: Annotated[float, Ge(0), Le(1), FieldSpec("Beta")] = 0.5
    """Which divergence the student lowers. 0 is forward KL: it covers everything that the teacher
    would write. 1 is reverse KL: it keeps to what the teacher would surely write. 0.5 is the
    Jensen-Shannon divergence, between the two. On the student's own answers, 1 is usual."""

    temperature: Annotated[float, Gt(0), Le(20), FieldSpec("Temperature")] = 1.0
    """What the logits of both models are divided by. Above 1, less likely tokens count more."""

    hard_weight: Annotated[float, Ge(0), Le(1), FieldSpec("Weight of given answers")] = 0.0
    """The share of the loss that is the ordinary cross-entropy of the answers in the dataset. 0
    learns from the teacher alone."""

    max_new_tokens: Annotated[
        int, Ge(1), Le(65_536), FieldSpec("Max answer length", "tokens", advanced=True)
    ] = 128
    """How long an answer of the student gets at most. Only with its own answers."""

    sampling_temperature: Annotated[
        float, Gt(0), Le(10), FieldSpec("Sampling temperature", advanced=True)
    ] = 1.0
    """How freely the student writes: at 1, as likely as it finds each token. Only with its own
    answers."""

    teacher_dtype: Annotated[
        TeacherFormat,
        FieldSpec(
            "Teacher format",
            advanced=True,
            related=("precision",),
            choice_titles={"native": "As saved"},
        ),
    ] = "native"
    """The number format that the teacher is loaded and computes in, whatever the precision of the
    student. 16 bits need half the memory."""

    @property
    def chunk_copies(self) -> int:
        """How many tensors with the logits of a chunk exist at a time."""
        return 7 if self.beta else 6


class DistilOptimisation(Optimisation):
    """How fast and how long the model trains."""

    learning_rate: LearningRate = 1e-4
    """Step size. Typical: 1e-4 for LoRA, 1e-5 for a full fine-tune."""


class DistilRecipe(Recipe):
    """Learn from a teacher: a small model learns how likely a larger one finds each token."""

    card_verb: ClassVar[str] = "distilled"
    card_tags: ClassVar[tuple[str, ...]] = ("knowledge-distillation",)

    method: Literal["distil"] = "distil"
    distillation: Distillation = Distillation()
    optimisation: DistilOptimisation = DistilOptimisation()

    @property
    def teacher(self) -> Teacher:
        return Teacher(self.distillation.teacher or "", self.distillation.teacher_dtype)

    @property
    def answer_tokens(self) -> int:
        """How many tokens an answer has at most that the student writes; 0 if it writes none."""
        own = self.distillation
        return own.max_new_tokens if own.answers == "student" else 0

    @property
    def answers_at_once(self) -> int:
        """How many answers the student writes at a time."""
        return self.optimisation.per_device_train_batch_size

    @property
    def answers_per_round(self) -> int:
        """How many answers the student writes before it learns from them."""
        optimisation = self.optimisation
        return optimisation.per_device_train_batch_size * optimisation.gradient_accumulation_steps

    def with_model_names(self, rename: Callable[[str], str]) -> Self:
        named = {"teacher": rename(self.distillation.teacher or "")}
        changed = {"distillation": self.distillation.model_copy(update=named)}
        return super().with_model_names(rename).model_copy(update=changed)

    def own_conflicts(self) -> Iterator[Conflict]:
        if self.answer_tokens and self.distillation.hard_weight:
            yield Conflict(
                message="Answers that the student writes are not those of the dataset, so they "
                "have no weight.",
                hint="Set the weight of given answers to 0, or learn on the given answers.",
                param="distillation.hard_weight",
            )
        if self.answer_tokens and self.data.packing:
            yield Conflict(
                message="Answers that the student writes cannot be packed.",
                hint="Turn off sequence packing.",
                param="data.packing",
            )
        if self.model.new_token_texts:
            yield Conflict(
                message="The teacher does not know new tokens, so it cannot teach them.",
                hint="Leave the new tokens empty.",
                param="model.new_tokens",
            )


EVAL_DIVERGENCE = replace(
    metrics.EVAL_LOSS,
    title="Validation divergence",
    note="How far the student's probabilities are from the teacher's, on the validation answers.",
)
AGREEMENT = MetricSpec(
    key="teacher_agreement_share",
    title="Agreement with the teacher",
    source="train",
    better="higher",
    chart="Agreement with the teacher",
)
EVAL_AGREEMENT = MetricSpec(
    key="eval_teacher_agreement_share",
    title="Validation agreement with the teacher",
    source="eval",
    better="higher",
    is_objective=True,
    chart="Agreement with the teacher",
    note="The share of answer tokens for which student and teacher have the same first choice.",
    is_always_drawn=True,
    tile="always",
)
EVAL_CROSS_ENTROPY = MetricSpec(
    key="eval_cross_entropy",
    title="Validation cross-entropy",
    unit="nats/token",
    source="eval",
    better="lower",
    is_objective=True,
    chart="Cross-entropy",
    note="The loss of the student on the given answers: what supervised fine-tuning calls its "
    "validation loss.",
    is_always_drawn=True,
)

METHOD = Method(
    name="distil",
    title="Distillation",
    purpose="Learn from a teacher",
    summary="Train a model on the probabilities of a better one with the same tokenizer.",
    recipe=DistilRecipe,
    metrics=MethodMetrics(
        (
            metrics.LOSS,
            EVAL_DIVERGENCE,
            metrics.BEST_EVAL_LOSS,
            EVAL_AGREEMENT,
            AGREEMENT,
            EVAL_CROSS_ENTROPY,
            metrics.EVAL_TOKEN_ACCURACY,
        ),
        objective=EVAL_DIVERGENCE,
    ),
    trains_on={
        "conversation": "The student learns how likely the teacher finds each token of the "
        "assistant's turns; the other turns are only context.",
        "text": "The student learns how likely the teacher finds each token of the text.",
        "preference": "The student learns how likely the teacher finds each token of the "
        "preferred answers.",
        "judged": "The student learns how likely the teacher finds each token of the answers "
        "rated good.",
    },
    ignores=SUPERVISED.ignores,
    presets=(
        replace(
            SUPERVISED.presets[0],
            summary="The starter model learns for a minute from what a run has made of it.",
        ),
        lora_preset(dataset="starter"),
        full_preset(1e-5, dataset="starter"),
    ),
)
