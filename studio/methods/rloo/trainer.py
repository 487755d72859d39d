"""The torch side of RLOO."""

import torch
from torch import Tensor

from studio.methods.grpo.trainer import build_trainer, tokenise
from studio.methods.rloo import RLOOPolicy, RLOORecipe
from studio.training.job import TrainingJob
from studio.training.rollouts.advantages import leave_one_out_advantages
from studio.training.rollouts.batches import AnswerWeights, PolicyLoss, PolicyTokens
from studio.training.rollouts.generation import WrittenAnswer
from studio.training.rollouts.trainer import RolloutTrainer

__all__ = ["build", "tokenise"]


def build(recipe: RLOORecipe, job: TrainingJob) -> "RLOOTrainer":
    """Build the trainer of a run."""
    trainer: RLOOTrainer = build_trainer(RLOOTrainer, recipe, job)
    return trainer


class RLOOTrainer(RolloutTrainer):
    """Compares each answer with the mean of the others to its prompt."""

    recipe: RLOORecipe

    def compute_advantages(self, rewards: Tensor, distances: Tensor | None) -> Tensor:
        """Return advantages. The distance from the start is a part of the reward."""
        if distances is not None:
            rewards = rewards - self.recipe.policy.beta * distances
        return leave_one_out_advantages(rewards, normalise=self.recipe.policy.normalise)

    def compute_policy_loss(self, tokens: PolicyTokens) -> PolicyLoss:
        return policy_loss(tokens, self.recipe.policy)

    def compute_weights(self, counts: AnswerWeights) -> Tensor:
        """Return equal weights: every answer counts the same."""
        return torch.full_like(counts.tokens, 1 / len(counts.tokens))

    def learns_from(self, answer: WrittenAnswer) -> bool:
        del answer
        return True


def policy_loss(tokens: PolicyTokens, policy: RLOOPolicy) -> PolicyLoss:
    """Return the loss of a batch: REINFORCE on whole answers, arXiv:2402.14740, with clipping."""
    log_ratio = ((tokens.logps - tokens.old_logps) * tokens.mask).sum(dim=1)
    ratio, advantages = log_ratio.exp(), tokens.advantages
    low, high = 1 - policy.epsilon, 1 + policy.epsilon
    losses = -torch.min(ratio * advantages, ratio.clamp(low, high) * advantages)
    clipped = ((ratio < low) & (advantages < 0)) | ((ratio > high) & (advantages > 0))
    with torch.no_grad():
        kl = tokens.divergence()
    return PolicyLoss(losses @ tokens.weights, clipped[:, None].expand_as(tokens.mask), kl)
