"""What a trainer counts of answers and their scores."""

import math
from collections.abc import Iterable, Sequence
from statistics import stdev
from typing import ClassVar

import torch
from torch import Tensor

from studio.graders.grading import Grading
from studio.protocols.grader_judges import AskTogether
from studio.training.accumulators import SumAccumulator
from studio.training.rollouts.batches import PolicyLoss
from studio.training.rollouts.grading import GradedGroup, grade_answers

_SAME = 1e-8
"""Scores that differ by less are the same."""


class RolloutAccumulator(SumAccumulator):
    """Sums over the tokens that are learned, and over the answers that are written."""

    SAVED_AS: ClassVar[str] = "RolloutSums"
    _OF_TOKENS = ("loss", "tokens", "learned", "entropy", "kl", "compared", "clipped", "gap")
    _OF_ANSWERS = ("answers", "scored", "reward", "written", "cut_off")
    _OF_GROUPS = ("groups", "flat_groups", "spread")
    _HELD_OUT = ("held_out_scored", "held_out_score")
    _MEANS: ClassVar[dict[str, tuple[str, str]]] = {
        "reward": ("reward", "scored"),
        "held_out_score": ("held_out_score", "held_out_scored"),
        "no_spread_share": ("flat_groups", "groups"),
        "reward_spread": ("spread", "groups"),
        "answer_tokens": ("written", "answers"),
        "cut_off_share": ("cut_off", "answers"),
        "entropy": ("entropy", "learned"),
        "kl": ("kl", "compared"),
        "clipped_share": ("clipped", "learned"),
        "sampling_gap": ("gap", "learned"),
    }
    """Metrics, each with its sum and what that is divided by."""
    NAMES: ClassVar[tuple[str, ...]] = (*_OF_TOKENS, *_OF_ANSWERS, *_OF_GROUPS, *_HELD_OUT)

    def add_tokens(
        self, result: PolicyLoss, *, mask: Tensor, entropy: Tensor, gap: Tensor, tokens: Tensor
    ) -> None:
        """Add a batch that is learned from. All but `tokens`, a count, have a value per token."""
        zero = torch.zeros((), device=mask.device)
        divergence = result.divergence
        values = [
            tokens,
            mask.sum(),
            (entropy * mask).sum(),
            zero if divergence is None else (divergence * mask).sum(),
            zero if divergence is None else mask.sum(),
            (result.clipped & mask).sum(),
            (gap * mask).sum(),
        ]
        rest = len(self.NAMES) - len(self._OF_TOKENS)
        self.add_sums(result.loss, [*values, *[zero] * rest])

    def add_groups(self, groups: Sequence[GradedGroup]) -> None:
        """Add answers that were written and graded."""
        answers = [answer for group in groups for answer in group.answers]
        rewards = [reward for group in groups for reward in group.rewards]
        spreads = [stdev(group.rewards) for group in groups if len(group.rewards) > 1]
        self._add(
            answers=len(answers),
            scored=len(rewards),
            reward=math.fsum(rewards),
            written=sum(answer.length for answer in answers),
            cut_off=sum(answer.written.is_cut_off for answer in answers),
            groups=len(spreads),
            flat_groups=sum(spread < _SAME for spread in spreads),
            spread=math.fsum(spreads),
        )

    def add_held_out(
        self, groups: Iterable[GradedGroup], grading: Grading, ask_together: AskTogether | None
    ) -> None:
        """Score answers with the grader that is not trained on."""
        answers = [(answer.text, group.prompt.task) for group in groups for answer in group.answers]
        grades = grade_answers(grading, answers, ask_together)
        scores = [grade.reward for grade in grades if grade.reward is not None]
        self._add(held_out_scored=len(scores), held_out_score=math.fsum(scores))

    def read(self) -> dict[str, float]:
        """Return the means since the last read; those of nothing are left out.

        A step that learns from answers written earlier counts no answers.
        """
        sums = self.read_sums()
        means = {
            name: sums[part] / sums[whole]
            for name, (part, whole) in self._MEANS.items()
            if sums[whole]
        }
        if sums["answers"]:
            means["grader_error_share"] = 1 - sums["scored"] / sums["answers"]
        return self.read_counts(sums) | means

    def _add(self, **sums: float) -> None:
        values = [sums.get(name, 0.0) for name in self.NAMES]
        self._sums += torch.tensor(values, dtype=torch.double, device=self._sums.device)
