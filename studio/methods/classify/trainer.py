"""The torch side of classification."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from trl.trainer.utils import disable_dropout_in_model

from studio.methods.classify import METHOD, ClassifyRecipe
from studio.methods.classify.counting import (
    LabelAccumulator,
    LabelCounts,
    LabelSetAccumulator,
    balanced_weights,
    positive_weights,
)
from studio.methods.classify.texts import (
    has_several,
    labels_of,
    list_labels,
    tokenise,
)
from studio.protocols.label_reports import LABEL_REPORTS, Confusion, LabelReport, LabelScore
from studio.training.data.rows import TrainingRow
from studio.training.data.text_batches import COLUMNS, TargetCollator
from studio.training.head_trainer import Batch, HeadTrainer
from studio.training.job import TrainingJob
from studio.training.memory.dry_run import BatchShape
from studio.training.models.heads import Head
from studio.training.monitoring import early_stopping
from studio.training.run_trainer import build_arguments

__all__ = ["build", "choose_head", "tokenise"]


def choose_head(rows: Sequence[TrainingRow]) -> Head:
    """Return the head of a classifier: one score per label."""
    if has_several(rows):
        return Head(list_labels(rows), "multi_label_classification")
    return Head(list_labels(rows), "single_label_classification")


def build(recipe: ClassifyRecipe, job: TrainingJob) -> "LabelTrainer":
    """Build the trainer of a run."""
    disable_dropout_in_model(job.model)
    args = build_arguments(recipe, job, METHOD.objective)
    config = job.model.config
    several = config.problem_type == "multi_label_classification"
    kind = LabelSetTrainer if several else LabelTrainer
    if several:
        # Users of the model read here which labels it gives.
        config.label_threshold = recipe.labels.threshold
    trainer = kind(job, args, early_stopping.callbacks(recipe))
    trainer.head_lr_ratio = recipe.head.head_lr_ratio
    trainer.job = job
    numbers: Mapping[str, int] = config.label2id
    for data, rows in (
        (trainer.train_dataset, job.train.rows),
        (trainer.eval_dataset, job.validation.rows),
    ):
        # A dry run builds the trainer with one row alone.
        for example, row in zip(data, rows, strict=True):
            example["label"] = trainer.target([numbers[name] for name in labels_of(row)])
    if recipe.labels.class_weights == "balanced":
        counts = Counter(numbers[name] for row in job.train.rows for name in labels_of(row))
        trainer.weights = torch.tensor(trainer.weigh(counts, len(job.train.rows)))
    return trainer


class LabelTrainer(HeadTrainer):
    """Learns the label of each text by cross-entropy, and counts on the device."""

    collator_type = TargetCollator
    columns = COLUMNS
    weights: Tensor | None = None
    """Of the labels in the loss of training steps: shape (labels,)."""
    job: TrainingJob
    _losses: Any

    @property
    def names(self) -> list[str]:
        """The labels, by number."""
        labels: Mapping[int, str] = self.model.config.id2label
        return [labels[number] for number in range(len(labels))]

    def new_accumulator(self) -> LabelAccumulator | LabelSetAccumulator:
        return LabelAccumulator(self.args.device, len(self.names))

    def target(self, numbers: Sequence[int]) -> Tensor:
        """Return what the model learns of a text with these labels."""
        return torch.tensor(numbers[0])

    def weigh(self, rows: Mapping[int, int], total: int) -> list[float]:
        """Return a weight for each label, given how many of the rows have it."""
        del total
        return balanced_weights(rows, len(self.names))

    def losses(self, scores: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        """Return the loss of each text: shape (texts,)."""
        losses = cross_entropy(scores, labels, reduction="none")
        return losses if weights is None else losses * weights.to(losses)[labels]

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,  # noqa: FBT001, FBT002, ARG002 -- upstream's signature
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the mean loss over the texts of the whole accumulated batch."""
        scores, labels = self.scores(model, inputs), inputs["label"]
        losses = self.losses(scores, labels, None)
        self._losses.add_texts(losses, scores, labels, inputs["attention_mask"].sum())
        if self.weights is not None and model.training:
            losses = self.losses(scores, labels, self.weights)
        count = len(losses) if num_items_in_batch is None else num_items_in_batch
        mean: Tensor = losses.sum() / count
        return mean

    def evaluation_metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        names = ("accuracy", "macro_f1", "micro_f1", "calibration_error")
        found = {f"eval_{name}": sums[name] for name in names if name in sums}
        return {"eval_loss": sums["mean_loss"]} | found

    def keep_counts(self) -> None:
        """Write how well each label was given."""
        counts: LabelCounts = self._losses.counts()
        report = LabelReport(
            step=self.state.global_step,
            texts=len(self.eval_dataset),
            macro_f1=counts.macro_f1,
            threshold=getattr(self.model.config, "label_threshold", None),
            labels=_score_labels(self.names, counts),
            confusions=_list_confusions(self.names, counts.confusion),
        )
        LABEL_REPORTS.append(self.job.run_dir, report)

    def dummy_batch(self, shape: BatchShape, device: torch.device) -> Batch:
        batch: Batch = shape.tensors(device)
        del batch["labels"]
        return batch | {"label": torch.stack([self.target([0])] * shape.examples).to(device)}


class LabelSetTrainer(LabelTrainer):
    """Learns for each label whether a text has it, by binary cross-entropy."""

    def new_accumulator(self) -> LabelSetAccumulator:
        threshold: float = self.model.config.label_threshold
        return LabelSetAccumulator(self.args.device, len(self.names), threshold)

    def target(self, numbers: Sequence[int]) -> Tensor:
        has = torch.zeros(len(self.names))
        has[list(numbers)] = 1.0
        return has

    def weigh(self, rows: Mapping[int, int], total: int) -> list[float]:
        return positive_weights(rows, len(self.names), total)

    def losses(self, scores: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        """Return the mean loss over the labels of each text: shape (texts,)."""
        positive = None if weights is None else weights.to(scores)
        losses: Tensor = binary_cross_entropy_with_logits(
            scores, labels, reduction="none", pos_weight=positive
        )
        return losses.mean(dim=-1)


def _score_labels(names: Sequence[str], counts: LabelCounts) -> list[LabelScore]:
    columns = (counts.precision, counts.recall, counts.f1, counts.true, counts.given)
    rows = zip(names, *(column.tolist() for column in columns), strict=True)
    return [
        LabelScore(
            label=name,
            precision=precision,
            recall=recall,
            f1=f1,
            support=int(support),
            given=int(given),
        )
        for name, precision, recall, f1, support, given in rows
    ]


def _list_confusions(names: Sequence[str], confusion: Tensor | None) -> list[Confusion]:
    if confusion is None:
        return []
    return [
        Confusion(true=names[true], given=names[given], count=int(confusion[true, given]))
        for true, given in confusion.nonzero().tolist()
    ]
