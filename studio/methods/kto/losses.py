"""The losses of learning from ratings, each a function of a batch of answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from studio.methods.kto import LossName


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedAnswers:
    """The answers of a batch. All tensors have one value per answer: shape (answers,)."""

    rewards: Tensor
    """Beta times how much more likely the answer is than under the reference, in nats."""
    is_good: Tensor
    """1 for an answer rated good, 0 for a bad one, in the format of the rewards."""
    divergence: Tensor | float
    """Beta times the estimated divergence from the reference, at least 0: a scalar."""
    baseline: Tensor | float
    """The mean reward of the steps before: a scalar."""

    @property
    def signs(self) -> Tensor:
        """1 for an answer rated good, -1 for a bad one."""
        return 2 * self.is_good - 1


def _kto(answers: RatedAnswers) -> Tensor:
    """KTO, arXiv:2402.01306, equation 7."""
    return 1 - torch.sigmoid(answers.signs * (answers.rewards - answers.divergence))


def _apo_zero_unpaired(answers: RatedAnswers) -> Tensor:
    """APO, arXiv:2408.06266, equation 7, for answers without a pair."""
    return 1 - torch.sigmoid(answers.signs * answers.rewards)


def _bco(answers: RatedAnswers) -> Tensor:
    """BCO, arXiv:2404.04656, whose running mean here is that of the steps before.

    So the loss of a step does not depend on how its rows are divided into batches.
    """
    return -logsigmoid(answers.signs * (answers.rewards - answers.baseline))


LOSSES: Mapping[LossName, Callable[[RatedAnswers], Tensor]] = {
    "kto": _kto,
    "apo_zero_unpaired": _apo_zero_unpaired,
    "bco": _bco,
}
"""Each returns a loss per answer: shape (answers,)."""


def balanced_weights(good: int, bad: int) -> tuple[float, float]:
    """Return weights of good and bad answers, by which both count equally as a whole.

    The more frequent kind has weight 1 (arXiv:2402.01306, equation 8).
    """
    most = max(good, bad)
    return most / good, most / bad
