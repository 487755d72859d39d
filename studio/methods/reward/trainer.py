"""The torch side of reward models."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from trl.trainer.utils import disable_dropout_in_model

from studio.methods.dpo.pairs import COLUMNS, PairCollator, tokenise
from studio.methods.reward import METHOD, RewardRecipe
from studio.training.accumulators import SumAccumulator
from studio.training.data.rows import TrainingRow
from studio.training.head_trainer import Batch, HeadTrainer
from studio.training.job import TrainingJob
from studio.training.models.heads import Head
from studio.training.monitoring import early_stopping
from studio.training.run_trainer import build_arguments

__all__ = ["build", "choose_head", "tokenise"]


def choose_head(_rows: Sequence[TrainingRow]) -> Head:
    """Return the head of a reward model: one score, whatever the data."""
    return Head(("score",), "regression")


def build(recipe: RewardRecipe, job: TrainingJob) -> "RewardTrainer":
    """Build the trainer of a run."""
    # The scores of two answers must differ by nothing but the answers.
    disable_dropout_in_model(job.model)
    args = build_arguments(recipe, job, METHOD.objective)
    trainer = RewardTrainer(job, args, early_stopping.callbacks(recipe))
    trainer.centring = recipe.scoring.centring
    trainer.head_lr_ratio = recipe.head.head_lr_ratio
    return trainer


def reward_loss(chosen: Tensor, rejected: Tensor, centring: float) -> Tensor:
    """Return the loss of each pair, given the scores of both answers: shape (pairs,).

    Bradley-Terry, arXiv:2203.02155, section 3.5; with scores centred as in arXiv:2312.09244,
    section 2.1.
    """
    losses: Tensor = -logsigmoid(chosen - rejected)
    return losses + centring * (chosen + rejected).square()


class RewardTrainer(HeadTrainer):
    """Scores two answers to the same prompt.

    A batch holds all better answers first, then all worse ones in the same order.
    """

    collator_type = PairCollator
    columns = COLUMNS
    centring = 0.0
    _losses: "ScoreAccumulator"

    def new_accumulator(self) -> "ScoreAccumulator":
        return ScoreAccumulator(self.args.device)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,  # noqa: FBT001, FBT002, ARG002 -- upstream's signature
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the mean loss over the pairs of the whole accumulated batch."""
        chosen, rejected = self.scores(model, inputs).squeeze(-1).chunk(2)
        losses = reward_loss(chosen, rejected, self.centring)
        self._losses.add_pairs(losses, chosen, rejected, inputs["attention_mask"].sum())
        count = len(losses) if num_items_in_batch is None else num_items_in_batch
        mean: Tensor = losses.sum() / count
        return mean

    def count_rows(self, batch: Batch) -> int:
        return super().count_rows(batch) // METHOD.sequences_per_row

    def evaluation_metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        names = ("preferred_share", "reward_margin", "chosen_score", "rejected_score")
        return {"eval_loss": sums["mean_loss"]} | {f"eval_{name}": sums[name] for name in names}


class ScoreAccumulator(SumAccumulator):
    """Sums over pairs."""

    SAVED_AS: ClassVar[str] = "ScoreSums"
    _MEANS = ("mean_loss", "preferred_share", "reward_margin", "chosen_score", "rejected_score")
    """What is reported as a mean over pairs."""
    NAMES: ClassVar[tuple[str, ...]] = (*_MEANS, "tokens", "pairs")

    def add_pairs(self, losses: Tensor, chosen: Tensor, rejected: Tensor, tokens: Tensor) -> None:
        """Add the scores of pairs, each of shape (pairs,)."""
        self.add_sums(
            losses.sum(),
            [
                # An untrained model prefers neither: a tie is half of a preference.
                (chosen > rejected).sum() + 0.5 * (chosen == rejected).sum(),
                (chosen - rejected).sum(),
                chosen.sum(),
                rejected.sum(),
                tokens,
                torch.ones_like(losses).sum(),
            ],
        )

    def read(self) -> dict[str, float]:
        """Return the means since the last read."""
        sums = self.read_sums()
        pairs = max(sums["pairs"], 1)
        return self.read_counts(sums) | {name: sums[name] / pairs for name in self._MEANS}
