"""What a classifier counts over texts, on the device: losses, and which labels it gives."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from studio.training.accumulators import SumAccumulator

BINS = 15
"""Ranges of confidence that the calibration error compares."""


@dataclass(frozen=True, slots=True)
class LabelCounts:
    """How often each label was given rightly, given, and true: each of shape (labels,)."""

    right: Tensor
    given: Tensor
    true: Tensor
    confusion: Tensor | None = None
    """Texts by true label, then by given label; None if a text may have several."""

    @property
    def precision(self) -> Tensor:
        return self.right / self.given.clamp(min=1)

    @property
    def recall(self) -> Tensor:
        return self.right / self.true.clamp(min=1)

    @property
    def f1(self) -> Tensor:
        return 2 * self.right / (self.given + self.true).clamp(min=1)

    @property
    def macro_f1(self) -> float:
        """The mean F1 score of the labels that occur or are given."""
        scores = self.f1[self.given + self.true > 0]
        return float(scores.mean()) if len(scores) else 0.0

    @property
    def micro_f1(self) -> float:
        """The F1 score of all decisions together."""
        both = float(self.given.sum() + self.true.sum())
        return 2 * float(self.right.sum()) / both if both else 0.0


class LabelAccumulator(SumAccumulator):
    """Sums over texts of one label each, and how often each label was taken for each other."""

    SAVED_AS: ClassVar[str] = "LabelSums"
    STATE_ATTRIBUTES: ClassVar[tuple[str, ...]] = (
        *SumAccumulator.STATE_ATTRIBUTES,
        "_confusion",
        "_bins",
    )
    NAMES: ClassVar[tuple[str, ...]] = ("loss", "tokens", "texts")

    def __init__(self, device: torch.device, labels: int) -> None:
        super().__init__(device)
        self._labels = labels
        self._confusion = torch.zeros(labels * labels, dtype=torch.long, device=device)
        """By true label, then by given label."""
        self._bins = torch.zeros(2, BINS, dtype=torch.double, device=device)
        """The confidence and the right answers of the texts in each range of confidence."""

    def add_texts(self, losses: Tensor, scores: Tensor, labels: Tensor, tokens: Tensor) -> None:
        """Add a batch: losses and labels of shape (texts,), scores of shape (texts, labels)."""
        self.add_sums(losses.sum(), [tokens, torch.ones_like(losses).sum()])
        confidence, given = scores.detach().softmax(dim=-1).max(dim=-1)
        pairs = labels * self._labels + given
        self._confusion.index_add_(0, pairs, torch.ones_like(pairs))
        ranges = (confidence * BINS).long().clamp(max=BINS - 1)
        found = torch.stack([confidence, (given == labels).to(confidence.dtype)])
        self._bins.index_add_(1, ranges, found.double())

    def counts(self) -> LabelCounts:
        """Return what was counted since the last read."""
        confusion = self._confusion.view(self._labels, self._labels).double().cpu()
        return LabelCounts(
            confusion.diagonal(), confusion.sum(dim=0), confusion.sum(dim=1), confusion
        )

    def read(self) -> dict[str, float]:
        """Return the means since the last read."""
        sums, bins, counts = self.read_sums(), self._bins.clone(), self.counts()
        self._confusion = torch.zeros_like(self._confusion)
        self._bins.zero_()
        texts = max(sums["texts"], 1)
        return self.read_counts(sums) | {
            "mean_loss": sums["loss"] / texts,
            "accuracy": float(counts.right.sum()) / texts,
            "macro_f1": counts.macro_f1,
            "calibration_error": float((bins[0] - bins[1]).abs().sum()) / texts,
        }


class LabelSetAccumulator(SumAccumulator):
    """Sums over texts that may have several labels, and the decisions on each label."""

    SAVED_AS: ClassVar[str] = "LabelSetSums"
    STATE_ATTRIBUTES: ClassVar[tuple[str, ...]] = (*SumAccumulator.STATE_ATTRIBUTES, "_decisions")
    NAMES: ClassVar[tuple[str, ...]] = ("loss", "exact", "tokens", "texts")

    def __init__(self, device: torch.device, labels: int, threshold: float) -> None:
        super().__init__(device)
        self._threshold = threshold
        self._decisions = torch.zeros(3, labels, dtype=torch.double, device=device)
        """How often each label was given rightly, given, and true."""

    def add_texts(self, losses: Tensor, scores: Tensor, labels: Tensor, tokens: Tensor) -> None:
        """Add a batch: losses of shape (texts,), scores and labels of shape (texts, labels)."""
        given = scores.detach().sigmoid() >= self._threshold
        true = labels > 0
        exact = (given == true).all(dim=-1).sum()
        self.add_sums(losses.sum(), [exact, tokens, torch.ones_like(losses).sum()])
        decisions = [(given & true), given, true]
        self._decisions += torch.stack([one.sum(dim=0).double() for one in decisions])

    def counts(self) -> LabelCounts:
        """Return what was counted since the last read."""
        return LabelCounts(*self._decisions.cpu().clone())

    def read(self) -> dict[str, float]:
        """Return the means since the last read."""
        sums, counts = self.read_sums(), self.counts()
        self._decisions.zero_()
        texts = max(sums["texts"], 1)
        return self.read_counts(sums) | {
            "mean_loss": sums["loss"] / texts,
            "accuracy": sums["exact"] / texts,
            "macro_f1": counts.macro_f1,
            "micro_f1": counts.micro_f1,
        }


def balanced_weights(rows: Mapping[int, int], count: int) -> list[float]:
    """Return a weight for each of the labels, with which each counts equally as a whole.

    `rows` has the number of rows of each label that occurs. Their mean over the rows is 1.
    """
    each = sum(rows.values()) / len(rows)
    return [each / rows[number] if number in rows else 1.0 for number in range(count)]


def positive_weights(rows: Mapping[int, int], count: int, total: int) -> list[float]:
    """Return a weight for the texts that have each label, with which they count like the others.

    `rows` has the number of rows of each label that occurs, of `total` rows.
    """
    return [
        (total - rows[number]) / rows[number] if 0 < rows.get(number, 0) < total else 1.0
        for number in range(count)
    ]
