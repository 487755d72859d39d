"""The torch side of process reward models."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from trl.trainer.utils import disable_dropout_in_model

from studio.methods.prm import METHOD, PRMRecipe
from studio.methods.prm.steps import refuse_equal_verdicts, tokenise
from studio.training.accumulators import SumAccumulator
from studio.training.data.labels import IGNORE_INDEX
from studio.training.data.rows import TrainingRow
from studio.training.head_trainer import Batch, HeadTrainer
from studio.training.job import TrainingJob
from studio.training.models.heads import Head
from studio.training.monitoring import early_stopping
from studio.training.run_trainer import build_arguments

__all__ = ["build", "choose_head", "tokenise"]

WRONG = 0


def choose_head(rows: Sequence[TrainingRow]) -> Head:
    """Return the head of a process reward model: whether a step is wrong or right, by token.

    Raises:
        TrainingError: all steps are right, or all are wrong.

    """
    refuse_equal_verdicts(rows)
    return Head(("wrong", "right"), "token_classification")


def build(recipe: PRMRecipe, job: TrainingJob) -> "StepTrainer":
    """Build the trainer of a run."""
    disable_dropout_in_model(job.model)
    args = build_arguments(recipe, job, METHOD.objective)
    trainer = StepTrainer(job, args, early_stopping.callbacks(recipe))
    trainer.head_lr_ratio = recipe.head.head_lr_ratio
    trainer.last_step_only = recipe.checking.last_step_only
    return trainer


class StepTrainer(HeadTrainer):
    """Learns at the last token of each step whether it is right, by cross-entropy.

    Losses are means over the steps of an accumulated batch.
    """

    columns = ("input_ids", "labels")
    last_step_only = False
    _losses: "StepAccumulator"

    def new_accumulator(self) -> "StepAccumulator":
        return StepAccumulator(self.args.device)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,  # noqa: FBT001, FBT002, ARG002 -- upstream's signature
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the mean loss over the steps of the whole accumulated batch."""
        scores, labels = self.scores(model, inputs), inputs["labels"]
        if self.last_step_only:
            labels = keep_last(labels)
        total = cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum")
        self._losses.add_steps(total, scores, labels, inputs["attention_mask"].sum())
        count = (labels != IGNORE_INDEX).sum() if num_items_in_batch is None else num_items_in_batch
        mean: Tensor = total / count
        return mean

    def count_rows(self, batch: Batch) -> int:
        """Return the number of steps of a batch."""
        if self.last_step_only:
            return super().count_rows(batch)
        return int((batch["labels"] != IGNORE_INDEX).sum())

    def evaluation_metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        names = ("step_accuracy", "wrong_step_f1", "first_error_share")
        return {"eval_loss": sums["mean_loss"]} | {f"eval_{name}": sums[name] for name in names}


def keep_last(labels: Tensor) -> Tensor:
    """Return labels of shape (rows, tokens) without those of steps that are not the last."""
    is_step = labels != IGNORE_INDEX
    following = is_step.flip(1).cumsum(1).flip(1)
    return labels.where(is_step & (following == 1), IGNORE_INDEX)


class StepAccumulator(SumAccumulator):
    """Sums over steps, and over the solutions that they belong to."""

    SAVED_AS: ClassVar[str] = "StepSums"
    NAMES: ClassVar[tuple[str, ...]] = (
        *("loss", "tokens", "steps", "right", "wrong", "called_wrong", "found"),
        *("solutions", "first_errors"),
    )

    def add_steps(self, loss: Tensor, scores: Tensor, labels: Tensor, tokens: Tensor) -> None:
        """Add a batch: scores of shape (rows, tokens, 2), labels of shape (rows, tokens)."""
        is_step = labels != IGNORE_INDEX
        given = scores.detach().argmax(dim=-1)
        wrong, called_wrong = labels == WRONG, is_step & (given == WRONG)
        self.add_sums(
            loss,
            [
                tokens,
                is_step.sum(),
                (is_step & (given == labels)).sum(),
                wrong.sum(),
                called_wrong.sum(),
                (wrong & called_wrong).sum(),
                torch.ones_like(labels[:, 0]).sum(),
                (_first(wrong) == _first(called_wrong)).sum(),
            ],
        )

    def read(self) -> dict[str, float]:
        """Return the means since the last read."""
        sums = self.read_sums()
        steps, both = max(sums["steps"], 1), sums["wrong"] + sums["called_wrong"]
        return self.read_counts(sums) | {
            "mean_loss": sums["loss"] / steps,
            "step_accuracy": sums["right"] / steps,
            # Without any wrong step, none is missed and none made up.
            "wrong_step_f1": 2 * sums["found"] / both if both else 1.0,
            "first_error_share": sums["first_errors"] / max(sums["solutions"], 1),
        }


def _first(marks: Tensor) -> Tensor:
    """Return the place of the first mark in each row, or the number of places without any."""
    places: Any = torch.arange(marks.shape[1], device=marks.device)
    found: Tensor = places.where(marks, marks.shape[1]).amin(dim=1)
    return found
