"""The torch side of GRPO."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from trl.trainer.utils import disable_dropout_in_model

from studio.errors import StudioError, TrainingError
from studio.graders.grading import Grading
from studio.graders.model_questions import AskModel
from studio.methods.grpo import METHOD, GRPORecipe
from studio.methods.grpo.losses import answer_weights, policy_loss
from studio.methods.rollouts import RolloutRecipe
from studio.protocols import grader_judges
from studio.settings import Settings
from studio.training.job import TrainingJob
from studio.training.monitoring import early_stopping
from studio.training.rollouts.advantages import group_advantages
from studio.training.rollouts.batches import AnswerWeights, PolicyLoss, PolicyTokens
from studio.training.rollouts.generation import SamplingSettings, WrittenAnswer
from studio.training.rollouts.prompts import tokenise
from studio.training.rollouts.reward_scores import RewardScores
from studio.training.rollouts.trainer import RolloutSettings, RolloutTrainer
from studio.training.run_trainer import build_arguments

__all__ = ["build", "tokenise"]


def build(recipe: GRPORecipe, job: TrainingJob) -> "GRPOTrainer":
    """Build the trainer of a run."""
    trainer: GRPOTrainer = build_trainer(GRPOTrainer, recipe, job)
    return trainer


def build_trainer(kind: Callable[..., Any], recipe: RolloutRecipe, job: TrainingJob) -> Any:  # noqa: ANN401 -- a trainer of this kind
    """Build the trainer of a run that learns from scores.

    Raises:
        TrainingError: the model has no positions for prompts and answers of this length.

    """
    # The model must score an answer as it wrote it.
    disable_dropout_in_model(job.model)
    settings = _make_settings(recipe, job)
    _refuse_beyond_context(job, settings.sampling.max_new_tokens)
    args = build_arguments(recipe, job, METHOD.objective)
    trainer = kind(job, args, early_stopping.callbacks(recipe), settings)
    trainer.recipe = recipe
    return trainer


def _make_settings(recipe: RolloutRecipe, job: TrainingJob) -> RolloutSettings:
    rollouts, policy = recipe.rollouts, job.spec.python_graders
    held_out = recipe.reward.parse_held_out_grader()
    scores = RewardScores(job.reward_models)
    ask = _find_judges(recipe, scores)
    return RolloutSettings(
        sampling=SamplingSettings(
            max_new_tokens=rollouts.max_new_tokens,
            temperature=rollouts.temperature,
            batch_size=rollouts.generation_batch_size,
            stop_tokens=job.stop_tokens,
            pad_token_id=job.tokenizer.pad_token_id,
        ),
        answers_per_prompt=rollouts.answers_per_prompt,
        steps_per_generation=rollouts.steps_per_generation,
        validation_prompts=rollouts.validation_prompts,
        validation_answers=rollouts.validation_answers,
        reference_weight=recipe.reference_weight,
        grading=Grading(recipe.reward.parse_grader(), policy, ask_model=ask),
        held_out_grading=Grading(held_out, policy, ask_model=ask) if held_out else None,
        ask_together=scores.ask_together,
    )


def _find_judges(recipe: RolloutRecipe, scores: RewardScores) -> AskModel | None:
    """Return what asks the models of graders; None if they ask none.

    Raises:
        TrainingError: there is no such endpoint.

    """
    if not recipe.reward.asked_models:
        return None
    if not recipe.asks_endpoints:
        return scores.ask
    try:
        judges = grader_judges.from_settings(Settings())
        for model in filter(grader_judges.asks_endpoint, recipe.reward.asked_models):
            judges.require(model)
    except StudioError as error:
        raise TrainingError("conflict", error.message, hint=error.hint) from error
    return grader_judges.ask_models(judges, scores.ask)


def _refuse_beyond_context(job: TrainingJob, max_new_tokens: int) -> None:
    context = getattr(job.model.config, "max_position_embeddings", None)
    longest = max(job.train.longest, job.validation.longest)
    if context is not None and longest + max_new_tokens > context:
        raise TrainingError(
            "conflict",
            f"The longest prompt has {longest:,} tokens and an answer up to {max_new_tokens:,}, "
            f"but this model reads and writes at most {context:,}.",
            hint='Lower "Max answer length" or "Max sequence length".',
        )


class GRPOTrainer(RolloutTrainer):
    """Compares each answer with the mean of all answers to its prompt."""

    recipe: GRPORecipe

    def compute_advantages(self, rewards: Tensor, distances: Tensor | None) -> Tensor:
        del distances  # The distance is a part of the loss.
        return group_advantages(rewards, self.recipe.policy.scale_rewards)

    def compute_policy_loss(self, tokens: PolicyTokens) -> PolicyLoss:
        return policy_loss(tokens, self.recipe.policy)

    def compute_weights(self, counts: AnswerWeights) -> Tensor:
        return answer_weights(counts, self.recipe.policy)

    def learns_from(self, answer: WrittenAnswer) -> bool:
        return not (answer.is_cut_off and self.recipe.policy.mask_truncated)
