"""The torch side of rerankers."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from trl.trainer.utils import disable_dropout_in_model

from studio.errors import TrainingError
from studio.methods.embed import retrieval
from studio.methods.rerank import METHOD, RerankRecipe
from studio.methods.rerank.texts import COLUMNS, ExampleCollator, tokenise
from studio.training.accumulators import SumAccumulator
from studio.training.data.rows import TrainingRow
from studio.training.head_trainer import Batch, HeadTrainer
from studio.training.job import TrainingJob
from studio.training.memory.dry_run import BatchShape
from studio.training.models.heads import Head
from studio.training.models.token_types import read_pairs
from studio.training.monitoring import early_stopping
from studio.training.run_trainer import build_arguments

__all__ = ["build", "choose_head", "tokenise"]

_MATCHES = 0.5
"""The target from which a text matches."""


def choose_head(rows: Sequence[TrainingRow]) -> Head:
    """Return the head of a reranker: one score.

    Raises:
        TrainingError: all texts match, or all pairs have the same score.

    """
    has_difference = any(len(row.pair) > 2 for row in rows)  # noqa: PLR2004 -- two match
    if not has_difference and len({row.score for row in rows}) == 1:
        raise TrainingError(
            "bad_row",
            f"In all {len(rows):,} rows, the two texts match equally well.",
            hint="Add texts that do not match, or pairs with other scores.",
        )
    return Head(("relevance",), "regression")


def build(recipe: RerankRecipe, job: TrainingJob) -> "RelevanceTrainer":
    """Build the trainer of a run."""
    disable_dropout_in_model(job.model)
    job.tokenizer.padding_side = "right"
    job.tokenizer.model_max_length = recipe.data.max_length
    # With a chat template, sentence-transformers would read each pair as a chat.
    job.tokenizer.chat_template = None
    args = build_arguments(recipe, job, METHOD.objective)
    trainer = RelevanceTrainer(job, args, early_stopping.callbacks(recipe))
    trainer.head_lr_ratio = recipe.head.head_lr_ratio
    trainer.positive_weight = recipe.reranking.positive_weight
    scores = [row.score for row in (*job.train.rows, *job.validation.rows) if row.score is not None]
    if scores:
        low, spread = min(scores), (max(scores) - min(scores)) or 1.0
        # A dry run builds the trainer with one row alone.
        for data in (trainer.train_dataset, trainer.eval_dataset):
            for example in data:
                example["target"] = (example["target"] - low) / spread
    return trainer


class RelevanceTrainer(HeadTrainer):
    """Learns how well each text matches its query, by binary cross-entropy."""

    collator_type = ExampleCollator
    columns = COLUMNS
    positive_weight = 1.0
    _losses: "RelevanceAccumulator"

    def new_accumulator(self) -> "RelevanceAccumulator":
        return RelevanceAccumulator(self.args.device)

    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        return read_pairs(model, self.model.config, batch)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,  # noqa: FBT001, FBT002, ARG002 -- upstream's signature
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the mean loss over the texts of the whole accumulated batch."""
        scores, targets = self.scores(model, inputs).squeeze(-1), inputs["target"]
        weight = scores.new_tensor(self.positive_weight)
        losses = binary_cross_entropy_with_logits(
            scores, targets, reduction="none", pos_weight=weight
        )
        self._losses.add_texts(losses, scores, targets, inputs["attention_mask"].sum())
        if not model.training:
            self._losses.keep(scores, targets, inputs["key"])
        count = len(losses) if num_items_in_batch is None else num_items_in_batch
        mean: Tensor = losses.sum() / count
        return mean

    def evaluation_metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        names = ("ndcg_at_10", "mrr_at_10", "accuracy")
        return {"eval_loss": sums["mean_loss"]} | {f"eval_{name}": sums[name] for name in names}

    def dummy_batch(self, shape: BatchShape, device: torch.device) -> Batch:
        batch: Batch = shape.tensors(device)
        del batch["labels"]
        numbers = torch.zeros(shape.examples, device=device)
        types = torch.zeros_like(batch["input_ids"])
        return batch | {"types": types, "target": numbers, "key": numbers.long()}


class RelevanceAccumulator(SumAccumulator):
    """Sums over texts; of a validation, also their scores."""

    SAVED_AS: ClassVar[str] = "RelevanceSums"
    NAMES: ClassVar[tuple[str, ...]] = ("loss", "tokens", "texts", "right")

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._kept: list[tuple[Tensor, Tensor, Tensor]] = []

    def add_texts(self, losses: Tensor, scores: Tensor, targets: Tensor, tokens: Tensor) -> None:
        """Add a batch: each but `tokens` of shape (texts,)."""
        right = (scores >= 0) == (targets >= _MATCHES)
        self.add_sums(losses.sum(), [tokens, torch.ones_like(losses).sum(), right.sum()])

    def keep(self, scores: Tensor, targets: Tensor, keys: Tensor) -> None:
        """Keep the scores of a batch, to rank the texts of each query; `keys` name the queries."""
        self._kept.append((scores.detach(), targets, keys))

    def read(self) -> dict[str, float]:
        """Return the means since the last read."""
        sums = self.read_sums()
        texts = max(sums["texts"], 1)
        found = {"mean_loss": sums["loss"] / texts, "accuracy": sums["right"] / texts}
        if self._kept:
            kept = (torch.cat(one).tolist() for one in zip(*self._kept, strict=True))
            ranking = rank_texts(*kept)
            found |= {"ndcg_at_10": ranking.ndcg, "mrr_at_10": ranking.mrr}
            self._kept = []
        return self.read_counts(sums) | found


def rank_texts(
    scores: Sequence[float], targets: Sequence[float], keys: Sequence[int]
) -> retrieval.Ranking:
    """Return how well the texts of each query are ranked. Of equal scores, the worse come first."""
    by_query: dict[int, list[tuple[float, float]]] = {}
    for score, target, key in zip(scores, targets, keys, strict=True):
        by_query.setdefault(key, []).append((-score, target))
    graded = []
    for own in by_query.values():
        gains = [target for _score, target in sorted(own)]
        graded.append((gains[: retrieval.BEST], dict(enumerate(gains))))
    return retrieval.average(graded)
