"""GRPO: the model writes several answers to a prompt, and learns from those that score higher."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from studio.methods import rollouts
from studio.methods.base import Method, Preset, full_preset, lora_preset
from studio.methods.rollouts import RolloutRecipe
from studio.metrics import MethodMetrics
from studio.recipe.base import Conflict
from studio.recipe.fields import FieldSpec, Section

LossName = Literal["dapo", "grpo", "bnpo", "dr_grpo", "cispo"]


class Policy(Section):
    """How the model changes with what its answers scored."""

    loss_type: Annotated[
        LossName,
        FieldSpec(
            "Loss",
            advanced=True,
            choice_titles={
                "dapo": "DAPO",
                "grpo": "GRPO",
                "bnpo": "BNPO",
                "dr_grpo": "Dr. GRPO",
                "cispo": "CISPO",
            },
        ),
    ] = "dapo"
    """What counts equally: every token of a step (DAPO, CISPO), every answer (GRPO), every token of
    a batch (BNPO), or every token that an answer could have had (Dr. GRPO)."""

    beta: Annotated[float, Ge(0), Le(10), FieldSpec("Beta", advanced=True)] = 0.0
    """How strongly the model is kept near the one before training. 0 is usual and saves a third of
    the computing; 0.04 is strong."""

    importance_level: Annotated[
        Literal["token", "sequence"],
        FieldSpec(
            "Importance ratio of",
            advanced=True,
            choice_titles={"token": "Each token", "sequence": "Whole answers (GSPO)"},
        ),
    ] = "token"
    """Only matters if the answers of several steps are written at once."""

    epsilon: Annotated[float, Gt(0), Le(100), FieldSpec("Clip below", advanced=True)] = 0.2
    """How much less likely a step may make a token before it no longer counts."""

    epsilon_high: Annotated[float, Gt(0), Le(100), FieldSpec("Clip above", advanced=True)] = 0.2
    """How much more likely a step may make a token before it no longer counts. For CISPO, the
    highest weight of a token."""

    scale_rewards: Annotated[
        Literal["group", "batch", "none"],
        FieldSpec(
            "Divide rewards by",
            advanced=True,
            choice_titles={
                "group": "Spread of each prompt's answers",
                "batch": "Spread of all answers",
                "none": "Nothing",
            },
        ),
    ] = "group"
    """Dividing by the spread of each prompt's answers makes easy and hard prompts count alike."""

    mask_truncated: Annotated[bool, FieldSpec("Ignore answers cut off", advanced=True)] = False
    """Learn nothing from answers that did not come to an end."""


class GRPORecipe(RolloutRecipe):
    """Learn from scores: the model tries several answers, and learns from the better ones."""

    method: Literal["grpo"] = "grpo"
    policy: Policy = Policy()

    @property
    def reference_weight(self) -> float:
        return self.policy.beta

    def own_conflicts(self) -> Iterator[Conflict]:
        if self.policy.importance_level == "sequence" and self.policy.loss_type == "cispo":
            yield Conflict(
                message="CISPO weighs single tokens, so it has no ratio of whole answers.",
                hint="Choose the ratio of each token, or another loss.",
                param="policy.importance_level",
            )
        yield from super().own_conflicts()


def _variant(name: str, title: str, summary: str, **policy: object) -> Preset:
    """Return a preset that differs from plain GRPO in its policy, and maybe in its rollouts."""
    rollouts_values = policy.pop("rollouts", {})
    base = lora_preset(policy=policy, rollouts=rollouts_values)
    return replace(base, name=name, title=title, summary=summary)


METHOD = Method(
    name="grpo",
    title="Reinforcement (GRPO)",
    purpose="Learn from scores",
    summary="The model writes several answers to each prompt, graders score them, and it learns "
    "from those that score higher than the others.",
    recipe=GRPORecipe,
    metrics=MethodMetrics(rollouts.METRICS, objective=rollouts.EVAL_REWARD),
    trains_on=rollouts.TRAINS_ON,
    presets=(
        rollouts.quick_start(reward={"grader": rollouts.CLOSE_GRADER}),
        lora_preset(),
        _variant(
            "dr_grpo",
            "Dr. GRPO",
            "Long answers and easy prompts count no more than others.",
            loss_type="dr_grpo",
            scale_rewards="none",
        ),
        _variant(
            "dapo",
            "DAPO",
            "Explores more, and learns nothing from answers that were cut off.",
            loss_type="dapo",
            epsilon_high=0.28,
            mask_truncated=True,
        ),
        _variant(
            "gspo",
            "GSPO",
            "Weighs whole answers instead of tokens: steadier for mixtures of experts.",
            loss_type="grpo",
            importance_level="sequence",
            epsilon=3e-4,
            epsilon_high=4e-4,
            rollouts={"steps_per_generation": 4},
        ),
        _variant("bnpo", "BNPO", "Every token of a batch counts equally.", loss_type="bnpo"),
        _variant(
            "cispo",
            "CISPO",
            "Clips the weight of tokens, so that none is ever left out.",
            loss_type="cispo",
            epsilon_high=5.0,
            rollouts={"steps_per_generation": 4},
        ),
        full_preset(1e-6),
    ),
    openai_type="reinforcement",
    openai_hyperparameters={
        "eval_interval": "evaluation.eval_steps",
        "eval_samples": "rollouts.validation_answers",
    },
)
