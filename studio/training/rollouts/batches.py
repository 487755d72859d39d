"""What a policy loss is computed from."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTokens:
    """The tokens of a batch of answers. All but `advantages` have the shape (answers, tokens)."""

    logps: Tensor
    """Log-probability of each token by the model that learns."""
    old_logps: Tensor
    """The same by the model that wrote the answers."""
    reference_logps: Tensor | None
    """The same by the model before training; None if the distance to it does not count."""
    mask: Tensor
    """Whether a token belongs to an answer."""
    advantages: Tensor
    """How much better each answer is than the others to its prompt: shape (answers,)."""
    weights: Tensor
    """How much a token of each answer counts: shape (answers,)."""

    def divergence(self) -> Tensor | None:
        """Return an estimate of the KL divergence from the reference, which is never negative.

        The estimator k3 of Schulman, "Approximating KL divergence", 2020.
        """
        if self.reference_logps is None:
            return None
        difference = self.reference_logps - self.logps
        return difference.exp() - difference - 1

    def weigh(self, losses: Tensor) -> Tensor:
        """Return the weighed sum of the losses of tokens: a number for each, or for each answer."""
        summed: Tensor = (losses * self.mask).sum(dim=1) @ self.weights
        return summed


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """The loss of a batch, and what is reported of it."""

    loss: Tensor
    clipped: Tensor
    """Which tokens clipping left out: shape (answers, tokens)."""
    divergence: Tensor | None
    """The distance from the reference, for each token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerWeights:
    """What decides how much a token of each answer of a step counts."""

    tokens: Tensor
    """Tokens of each answer that are learned from: shape (answers,), as floats."""
    tokens_in_batch: Tensor
    """Such tokens in the batch that each answer is in: the same shape."""
    batches: int
    """Number of batches in the step."""
    max_tokens: int
    """The maximum length of an answer."""


def place_logps(rows: list[list[float]], starts: list[int], width: int) -> Tensor:
    """Return log-probabilities of answers where the model scores them: shape (answers, width - 1).

    `starts` are the lengths of the prompts; the score of token i stands at position i - 1.
    """
    placed = torch.zeros(len(rows), width - 1)
    for row, (start, logps) in enumerate(zip(starts, rows, strict=True)):
        placed[row, start - 1 : start - 1 + len(logps)] = torch.tensor(logps)
    return placed
