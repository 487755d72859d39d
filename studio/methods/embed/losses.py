"""The losses of embeddings. All vectors have length 1, so a product is a cosine."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, relu

from studio.training.models.pooling import shorten


@dataclass(frozen=True, slots=True, kw_only=True)
class PairVectors:
    """The vectors of a batch of rows, and which of their texts are equal."""

    anchors: Tensor
    """Shape (rows, width)."""
    positives: Tensor
    """Shape (rows, width)."""
    negatives: Tensor
    """Texts that do not match the anchor of their row: shape (negatives, width)."""
    owners: Tensor
    """The row of each negative: shape (negatives,)."""
    keys: Tensor
    """A number for each text, equal for equal texts: anchors, positives, negatives."""
    scores: Tensor
    """How alike the texts of each row are; NaN if they just match: shape (rows,)."""

    @property
    def rows(self) -> int:
        return len(self.anchors)

    def shortened(self, size: int) -> "PairVectors":
        """Return the first numbers of each vector, as vectors of length 1."""
        return replace(
            self,
            anchors=shorten(self.anchors, size),
            positives=shorten(self.positives, size),
            negatives=shorten(self.negatives, size),
        )


Loss = Callable[[PairVectors], Tensor]
"""Returns the sum of the losses of the rows."""


def false_negatives(batch: PairVectors) -> Tensor:
    """Return which texts would be wrong to push away from an anchor: shape (rows, candidates).

    The candidates are all positives, then all negatives. Wrong are the anchor itself, a text equal
    to its positive, and the positive of an equal anchor; its own positive is not among them.
    """
    rows = batch.rows
    anchors, candidates = batch.keys[:rows], batch.keys[rows:]
    positives = candidates[:rows]
    wrong = (candidates == positives[:, None]) | (candidates == anchors[:, None])
    of_equal = anchors[:, None] == anchors
    wrong[:, :rows] |= of_equal
    own = torch.eye(rows, len(candidates), dtype=torch.bool, device=wrong.device)
    return wrong & ~own


def ranking_loss(batch: PairVectors, scale: float) -> Tensor:
    """Return the summed cross-entropy of each anchor's positive among all texts of the batch.

    InfoNCE, arXiv:1807.03748, equation 4; multiple negatives ranking, arXiv:1705.00652, section 4.
    A text that occurs twice is never a false negative.
    """
    candidates = torch.cat([batch.positives, batch.negatives])
    scores = scale * batch.anchors @ candidates.T
    scores = scores.masked_fill(false_negatives(batch), -torch.inf)
    targets = torch.arange(batch.rows, device=scores.device)
    return cross_entropy(scores, targets, reduction="sum")


def triplet_loss(batch: PairVectors, margin: float) -> Tensor:
    """Return the sum over rows of the mean loss of their negatives, by cosine distance.

    FaceNet, arXiv:1503.03832, equation 3, with cosines.
    """
    near = (batch.anchors * batch.positives).sum(dim=-1)
    far = (batch.anchors[batch.owners] * batch.negatives).sum(dim=-1)
    losses = relu(margin + far - near[batch.owners])
    counts = torch.zeros_like(near).index_add(0, batch.owners, torch.ones_like(far))
    return (losses / counts[batch.owners]).sum()


def cosent_loss(batch: PairVectors, scale: float) -> Tensor:
    """Return the CoSENT loss of a batch, times its rows: pairs sorted by their scores.

    For each two rows whose scores differ, the cosine of the lower one should be lower.
    kexue.fm/archives/8847.
    """
    cosines = scale * (batch.anchors * batch.positives).sum(dim=-1)
    lower = batch.scores[:, None] < batch.scores
    differences = (cosines[:, None] - cosines).masked_fill(~lower, -torch.inf)
    # A zero is the 1 in log(1 + sum of exp).
    terms = torch.cat([differences.new_zeros(1), differences.flatten()])
    return batch.rows * torch.logsumexp(terms, dim=0)


def matryoshka(loss: Loss, sizes: tuple[int, ...]) -> Loss:
    """Return the mean of a loss over whole vectors and their starts (arXiv:2205.13147)."""

    def combined(batch: PairVectors) -> Tensor:
        losses = [loss(batch), *(loss(batch.shortened(size)) for size in sizes)]
        return torch.stack(losses).mean()

    return combined
