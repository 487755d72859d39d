"""Process reward models: the model learns which steps of a solution are right."""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from studio.methods.base import Method, full_preset, lora_preset
from studio.methods.heads import HeadRecipe, HeadSection
from studio.metrics import EVAL_LOSS, LOSS, MethodMetrics, MetricSpec
from studio.recipe.base import Outputs
from studio.recipe.fields import FieldSpec
from studio.weights.architectures import SCORING_TOKENS


class Checking(HeadSection):
    """How steps are checked."""

    last_step_only: Annotated[bool, FieldSpec("Last step only", advanced=True)] = False
    """Learn from the last step of each solution only: whether the solution is right in the end."""


class PRMRecipe(HeadRecipe):
    """Check steps: the model reads a solution, and learns which of its steps are right."""

    card_verb: ClassVar[str] = "trained to check steps"
    card_tags: ClassVar[tuple[str, ...]] = ("process-reward-model",)
    outputs: ClassVar[Outputs] = "steps"

    method: Literal["prm"] = "prm"
    checking: Checking = Checking()

    @property
    def head(self) -> Checking:
        return self.checking


STEP_ACCURACY = MetricSpec(
    key="step_accuracy",
    title="Right verdicts",
    source="train",
    better="higher",
    chart="Right verdicts",
)
EVAL_STEP_ACCURACY = replace(
    STEP_ACCURACY,
    key="eval_step_accuracy",
    title="Validation right verdicts",
    source="eval",
    is_objective=True,
    note="Most steps are right: a model that finds no error can have a high share here. Watch "
    "the F1 score of wrong steps.",
)
EVAL_WRONG_F1 = MetricSpec(
    key="eval_wrong_step_f1",
    title="Validation F1 of wrong steps",
    source="eval",
    better="higher",
    is_objective=True,
    chart="Wrong steps found",
    note="High only if the model finds most wrong steps, and calls few right ones wrong.",
    is_always_drawn=True,
    tile="always",
)
BEST_EVAL_WRONG_F1 = MetricSpec(
    key="best_eval_wrong_step_f1",
    title="Best validation F1 of wrong steps",
    better="higher",
    chart="-",
)
EVAL_FIRST_ERROR = MetricSpec(
    key="eval_first_error_share",
    title="First error found",
    source="eval",
    better="higher",
    is_objective=True,
    chart="Wrong steps found",
    tile="result",
)
"""The share of solutions of which the model finds the first wrong step, or that none is wrong:
what ProcessBench measures, arXiv:2412.06559, section 3.1."""

METHOD = Method(
    name="prm",
    title="Process reward model",
    purpose="Learn to check steps",
    summary="Train a model that reads a solution and says which of its steps are right.",
    recipe=PRMRecipe,
    metrics=MethodMetrics(
        (
            EVAL_WRONG_F1,
            BEST_EVAL_WRONG_F1,
            EVAL_FIRST_ERROR,
            EVAL_STEP_ACCURACY,
            STEP_ACCURACY,
            *(replace(spec, unit="nats") for spec in (LOSS, EVAL_LOSS)),
        ),
        objective=EVAL_WRONG_F1,
    ),
    families=SCORING_TOKENS,
    trains_on={"steps": "The model reads the solution, and learns at the end of each step."},
    presets=(lora_preset(), full_preset(2e-5)),
)
