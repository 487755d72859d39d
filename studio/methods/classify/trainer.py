"""The torch side of classification."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from trl.trainer.utils import disable_dropout_in_model

from studio.methods.classify import METHOD, ClassifyRecipe
from studio.methods.classify.texts import COLUMNS, LabelCollator, label_of, list_labels, tokenise
from studio.training.accumulators import SumAccumulator
from studio.training.data.rows import TrainingRow
from studio.training.head_trainer import Batch, HeadTrainer
from studio.training.job import TrainingJob
from studio.training.memory.dry_run import BatchShape
from studio.training.models.heads import Head
from studio.training.monitoring import early_stopping
from studio.training.run_trainer import build_arguments

__all__ = ["build", "choose_head", "tokenise"]

BINS = 15
"""Ranges of confidence that the calibration error compares."""


def choose_head(rows: Sequence[TrainingRow]) -> Head:
    """Return the head of a classifier: one score per label."""
    return Head(list_labels(rows), "single_label_classification")


def build(recipe: ClassifyRecipe, job: TrainingJob) -> "LabelTrainer":
    """Build the trainer of a run."""
    disable_dropout_in_model(job.model)
    args = build_arguments(recipe, job, METHOD.objective)
    trainer = LabelTrainer(job, args, early_stopping.callbacks(recipe))
    trainer.head_lr_ratio = recipe.head.head_lr_ratio
    numbers: Mapping[str, int] = job.model.config.label2id
    for data, rows in (
        (trainer.train_dataset, job.train.rows),
        (trainer.eval_dataset, job.validation.rows),
    ):
        _number_labels(data, rows, numbers)
    if recipe.labels.class_weights == "balanced":
        counts = Counter(numbers[label_of(row)] for row in job.train.rows)
        trainer.weights = torch.tensor(balanced_weights(counts, len(numbers)))
    return trainer


def balanced_weights(rows: Mapping[int, int], count: int) -> list[float]:
    """Return a weight for each of the labels, with which each counts equally as a whole.

    `rows` has the number of rows of each label that occurs. Their mean over the rows is 1.
    """
    each = sum(rows.values()) / len(rows)
    return [each / rows[number] if number in rows else 1.0 for number in range(count)]


def _number_labels(
    data: Sequence[dict[str, Any]], rows: Sequence[TrainingRow], numbers: Mapping[str, int]
) -> None:
    # A dry run builds the trainer with one row alone.
    for example, row in zip(data, rows, strict=True):
        example["label"] = torch.tensor(numbers[label_of(row)])


class LabelTrainer(HeadTrainer):
    """Learns the label of each text by cross-entropy, and counts on the device."""

    collator_type = LabelCollator
    columns = COLUMNS
    weights: Tensor | None = None
    """Of the labels in the loss of training steps: shape (labels,)."""
    _losses: "LabelAccumulator"

    def new_accumulator(self) -> "LabelAccumulator":
        return LabelAccumulator(self.args.device, len(self.model.config.id2label))

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,  # noqa: FBT001, FBT002, ARG002 -- upstream's signature
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the mean loss over the texts of the whole accumulated batch."""
        scores, labels = self.scores(model, inputs), inputs["label"]
        losses = cross_entropy(scores, labels, reduction="none")
        self._losses.add_texts(losses, scores, labels, inputs["attention_mask"].sum())
        if self.weights is not None and model.training:
            losses = losses * self.weights.to(losses)[labels]
        count = len(losses) if num_items_in_batch is None else num_items_in_batch
        mean: Tensor = losses.sum() / count
        return mean

    def evaluation_metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        names = ("accuracy", "macro_f1", "calibration_error")
        return {"eval_loss": sums["mean_loss"]} | {f"eval_{name}": sums[name] for name in names}

    def dummy_batch(self, shape: BatchShape, device: torch.device) -> Batch:
        batch: Batch = shape.tensors(device)
        del batch["labels"]
        return batch | {"label": torch.zeros(shape.examples, dtype=torch.long, device=device)}


class LabelAccumulator(SumAccumulator):
    """Sums over texts, and how often each label was taken for each other."""

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

    def read(self) -> dict[str, float]:
        """Return the means since the last read."""
        sums, bins = self.read_sums(), self._bins.clone()
        confusion = self._confusion.view(self._labels, self._labels).double()
        self._confusion = torch.zeros_like(self._confusion)
        self._bins.zero_()
        texts = max(sums["texts"], 1)
        return self.read_counts(sums) | {
            "mean_loss": sums["loss"] / texts,
            "accuracy": float(confusion.diagonal().sum()) / texts,
            "macro_f1": macro_f1(confusion),
            "calibration_error": float((bins[0] - bins[1]).abs().sum()) / texts,
        }


def macro_f1(confusion: Tensor) -> float:
    """Return the mean F1 score of the labels that occur or are given: shape (labels, labels)."""
    right, both = confusion.diagonal(), confusion.sum(dim=0) + confusion.sum(dim=1)
    scores = 2 * right[both > 0] / both[both > 0]
    return float(scores.mean()) if len(scores) else 0.0
