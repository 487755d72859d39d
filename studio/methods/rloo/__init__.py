"""RLOO: the model learns from answers that score higher than its other answers do on average."""

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from studio.methods import rollouts
from studio.methods.base import Method, full_preset, lora_preset
from studio.methods.rollouts import AnswersPerPrompt, RolloutRecipe, Rollouts
from studio.metrics import MethodMetrics
from studio.recipe.fields import FieldSpec, Section


class RLOORollouts(Rollouts):
    """How the model writes the answers that it learns from."""

    answers_per_prompt: AnswersPerPrompt = 4
    """How many answers the model writes to each prompt. Each is compared with the mean of the
    others: more make the comparison more exact, and take longer."""


class RLOOPolicy(Section):
    """How the model changes with what its answers scored."""

    beta: Annotated[float, Ge(0), Le(10), FieldSpec("Beta")] = 0.05
    """How strongly the model is kept near the one before training: what each nat of distance costs.
    0 saves a third of the computing."""

    epsilon: Annotated[float, Gt(0), Le(100), FieldSpec("Clip", advanced=True)] = 0.2
    """How much more or less likely a step may make an answer before it no longer counts."""

    normalise: Annotated[bool, FieldSpec("Normalise advantages", advanced=True)] = False
    """Scale what is learned from all answers of a step to the same spread at every step."""


class RLOORecipe(RolloutRecipe):
    """Learn from scores: each answer is compared with the others to the same prompt."""

    method: Literal["rloo"] = "rloo"
    policy: RLOOPolicy = RLOOPolicy()
    rollouts: RLOORollouts = RLOORollouts()

    @property
    def reference_weight(self) -> float:
        return self.policy.beta


METHOD = Method(
    name="rloo",
    title="Reinforcement (RLOO)",
    purpose="Learn from scores, simply",
    summary="The model writes several answers to each prompt, graders score them, and it learns "
    "from each in comparison with the mean of the others.",
    recipe=RLOORecipe,
    metrics=MethodMetrics(rollouts.METRICS, objective=rollouts.EVAL_REWARD),
    trains_on=rollouts.TRAINS_ON,
    presets=(
        rollouts.quick_start(reward={"grader": rollouts.CLOSE_GRADER}),
        lora_preset(),
        full_preset(1e-6),
    ),
)
