"""Classification: the model learns which label a text has, or which ones."""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt, Lt

from studio.intake.quality.answer_facts import label_problem
from studio.methods.base import Method, full_preset, lora_preset, quick_preset
from studio.methods.heads import SCORABLE, SCORABLE_FAMILIES, HeadRecipe, HeadSection
from studio.metrics import EVAL_LOSS, LOSS, MethodMetrics, MetricSpec
from studio.recipe.base import Outputs
from studio.recipe.fields import FieldSpec


class Labels(HeadSection):
    """How the labels are learned."""

    class_weights: Annotated[
        Literal["none", "balanced"],
        FieldSpec(
            "Class weights",
            choice_titles={"none": "Every row counts equally", "balanced": "Every label does"},
        ),
    ] = "none"
    """Let every label count equally as a whole if rare labels matter as much as common ones: then
    each row of a rare label counts more."""

    threshold: Annotated[float, Gt(0), Lt(1), FieldSpec("Threshold of labels")] = 0.5
    """If texts have several labels each, those of at least this probability are given. Lower it to
    miss fewer labels; raise it to give fewer wrong ones. Without effect on texts of one label."""


class ClassifyRecipe(HeadRecipe):
    """Learn labels: the model reads a text, and learns which of the labels it has."""

    card_verb: ClassVar[str] = "trained to give labels"
    card_tags: ClassVar[tuple[str, ...]] = ()
    outputs: ClassVar[Outputs] = "label"

    method: Literal["classify"] = "classify"
    labels: Labels = Labels()

    @property
    def head(self) -> Labels:
        return self.labels


ACCURACY = MetricSpec(
    key="accuracy", title="Accuracy", source="train", better="higher", chart="Accuracy"
)
EVAL_ACCURACY = MetricSpec(
    key="eval_accuracy",
    title="Validation accuracy",
    source="eval",
    better="higher",
    is_objective=True,
    chart="Accuracy",
    note="Accuracy counts rows. Macro F1 counts every label equally, however rare it is.",
    is_always_drawn=True,
    tile="always",
)
EVAL_MACRO_F1 = MetricSpec(
    key="eval_macro_f1",
    title="Validation macro F1",
    source="eval",
    better="higher",
    is_objective=True,
    chart="Accuracy",
    is_always_drawn=True,
    tile="always",
)
"""The mean over the labels that occur of the F1 score of each."""
EVAL_MICRO_F1 = MetricSpec(
    key="eval_micro_f1",
    title="Validation micro F1",
    source="eval",
    better="higher",
    is_objective=True,
    tile="result",
)
"""The F1 score of all decisions on labels together, of texts that may have several."""
BEST_EVAL_MACRO_F1 = MetricSpec(
    key="best_eval_macro_f1", title="Best validation macro F1", better="higher", chart="-"
)
CALIBRATION_ERROR = MetricSpec(
    key="eval_calibration_error",
    title="Calibration error",
    source="eval",
    better="lower",
    chart="Calibration error",
    note="How far the model's confidence is from how often it is right. 0 is best.",
)
"""By how much the model's confidence differs from how often it is right, on average."""

METHOD = Method(
    name="classify",
    title="Classification",
    purpose="Learn labels",
    summary="Train a model that reads a text and gives it one of several labels, or some of them.",
    recipe=ClassifyRecipe,
    metrics=MethodMetrics(
        (
            EVAL_MACRO_F1,
            BEST_EVAL_MACRO_F1,
            EVAL_ACCURACY,
            EVAL_MICRO_F1,
            ACCURACY,
            *(replace(spec, unit="nats") for spec in (LOSS, EVAL_LOSS)),
            CALIBRATION_ERROR,
        ),
        objective=EVAL_MACRO_F1,
    ),
    trainable_kinds=SCORABLE,
    families=SCORABLE_FAMILIES,
    trains_on={
        "conversation": "The last answer of each conversation is its label, or a list of labels; "
        "what comes before is what the model reads."
    },
    answer_problem=label_problem,
    presets=(
        quick_preset(1e-3, epochs=20.0, validation_share=0.2),
        lora_preset(),
        full_preset(2e-5),
    ),
)
