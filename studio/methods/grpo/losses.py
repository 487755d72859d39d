"""The losses of policy optimisation: what a token of an answer adds, given how it scored."""

import torch
from torch import Tensor

from studio.methods.grpo import Policy
from studio.training.rollouts.batches import AnswerWeights, PolicyLoss, PolicyTokens


def policy_loss(tokens: PolicyTokens, policy: Policy) -> PolicyLoss:
    """Return the loss of a batch and which tokens clipping leaves out.

    GRPO, arXiv:2402.03300; DAPO, 2503.14476; Dr. GRPO, 2503.20783; CISPO, 2506.13585; with ratios
    of whole answers GSPO, 2507.18071. They differ in the ratio, the clipping, and the weights.
    """
    advantages = tokens.advantages[:, None]
    log_ratio = tokens.logps - tokens.old_logps
    if policy.importance_level == "sequence":
        counts = tokens.mask.sum(dim=1, keepdim=True).clamp(min=1)
        log_ratio = (log_ratio * tokens.mask).sum(dim=1, keepdim=True) / counts
    ratio = log_ratio.exp()
    if policy.loss_type == "cispo":
        losses = -ratio.detach().clamp(max=policy.epsilon_high) * advantages * tokens.logps
        clipped = (ratio > policy.epsilon_high) & (advantages > 0)
    else:
        low, high = 1 - policy.epsilon, 1 + policy.epsilon_high
        losses = -torch.min(ratio * advantages, ratio.clamp(low, high) * advantages)
        clipped = ((ratio < low) & (advantages < 0)) | ((ratio > high) & (advantages > 0))
    kl = tokens.divergence()
    if kl is not None:
        # Weighed by the ratio, the estimate stays unbiased for answers of an older model.
        losses = losses + policy.beta * kl * ratio
    return PolicyLoss(tokens.weigh(losses), clipped.expand_as(tokens.mask), kl)


def answer_weights(counts: AnswerWeights, policy: Policy) -> Tensor:
    """Return the weight of a token of each answer: shape (answers,).

    The sum over all tokens and answers of a step, weighed so, is the loss of the step.
    """
    answers = len(counts.tokens)
    match policy.loss_type:
        case "grpo":
            weights = 1 / (counts.tokens.clamp(min=1) * answers)
        case "dr_grpo":
            weights = torch.full_like(counts.tokens, 1 / (answers * counts.max_tokens))
        case "bnpo":
            weights = 1 / (counts.tokens_in_batch.clamp(min=1) * counts.batches)
        case _:
            weights = torch.full_like(counts.tokens, 1 / max(float(counts.tokens.sum()), 1))
    return weights
