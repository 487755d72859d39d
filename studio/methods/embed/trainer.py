"""The torch side of embeddings."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from trl.trainer.utils import disable_dropout_in_model

from studio.errors import TrainingError
from studio.methods.embed import METHOD, Embedding, EmbedRecipe, retrieval
from studio.methods.embed.losses import (
    Loss,
    PairVectors,
    cosent_loss,
    matryoshka,
    ranking_loss,
    triplet_loss,
)
from studio.methods.embed.texts import COLUMNS, PairCollator, tokenise
from studio.methods.regress.counting import correlation, ranks
from studio.training.accumulators import SumAccumulator
from studio.training.data.rows import TrainingRow
from studio.training.head_trainer import Batch, HeadTrainer
from studio.training.job import TrainingJob
from studio.training.memory.dry_run import BatchShape
from studio.training.models.heads import VECTORS, Head
from studio.training.models.pooling import embed
from studio.training.monitoring import early_stopping
from studio.training.run_trainer import build_arguments

__all__ = ["build", "choose_head", "tokenise"]


def choose_head(_rows: Sequence[TrainingRow]) -> Head:
    """Return what an embedding model ends in: nothing behind its last states."""
    return VECTORS


def build(recipe: EmbedRecipe, job: TrainingJob) -> "VectorTrainer":
    """Build the trainer of a run.

    Raises:
        TrainingError: the loss cannot be computed of these rows, or a shorter vector is none.

    """
    disable_dropout_in_model(job.model)
    job.tokenizer.padding_side = "right"
    # With a chat template, sentence-transformers would read each text as the turn of a chat.
    job.tokenizer.chat_template = None
    settings, width = recipe.embedding, job.model.config.get_text_config().hidden_size
    if too_long := [size for size in settings.shorter_sizes if size >= width]:
        raise TrainingError(
            "conflict",
            f"This model gives vectors of {width:,} numbers, so {too_long[0]:,} is no shorter one.",
            hint=f"Choose lengths below {width:,}.",
        )
    args = build_arguments(recipe, job, METHOD.objective)
    trainer = VectorTrainer(job, args, early_stopping.callbacks(recipe))
    trainer.settings = settings
    rows = [*job.train.rows, *job.validation.rows]
    trainer.loss = choose_loss(settings, rows)
    return trainer


def choose_loss(settings: Embedding, rows: Sequence[TrainingRow]) -> Loss:
    """Return the loss that a recipe asks for.

    Raises:
        TrainingError: the rows lack what it compares.

    """
    name, is_scored = settings.loss_type, any(row.score is not None for row in rows)
    if name == "automatic":
        name = "cosent" if is_scored else "ranking"
    if name == "cosent":
        _require(rows, all(row.score is not None for row in rows), "no score", "ranking")
        _refuse_equal_scores(rows)
        loss: Loss = partial(cosent_loss, scale=settings.scale)
    else:
        _require(rows, not is_scored, "a score, and not only texts that match", "CoSENT")
        loss = partial(ranking_loss, scale=settings.scale)
    if name == "triplet":
        lacking = [row for row in rows if len(row.pair) < 3]  # noqa: PLR2004 -- two match
        _require(lacking, not lacking, "no text that does not match", "ranking")
        loss = partial(triplet_loss, margin=settings.margin)
    return matryoshka(loss, settings.shorter_sizes) if settings.shorter_sizes else loss


def _require(rows: Sequence[TrainingRow], holds: bool, what: str, other: str) -> None:  # noqa: FBT001 -- one fact
    if not holds:
        raise TrainingError(
            "bad_row",
            f"{rows[0].location} has {what}, which this loss cannot learn from.",
            hint=f"Choose the loss by the data, or {other}.",
        )


def _refuse_equal_scores(rows: Sequence[TrainingRow]) -> None:
    # A dry run builds the trainer with two rows alone.
    if len(rows) > 2 and len({row.score for row in rows}) == 1:  # noqa: PLR2004 -- the same
        raise TrainingError(
            "bad_row",
            f"All {len(rows):,} rows have the same score.",
            hint="Add pairs with other scores, or leave the score out of the mapping.",
        )


class VectorTrainer(HeadTrainer):
    """Compares the vectors of the texts in a batch; losses are means over its rows."""

    collator_type = PairCollator
    columns = COLUMNS
    settings: Embedding
    loss: Loss
    _losses: "VectorAccumulator"

    def new_accumulator(self) -> "VectorAccumulator":
        return VectorAccumulator(self.args.device)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,  # noqa: FBT001, FBT002, ARG002 -- upstream's signature
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the mean loss over the rows of the whole accumulated batch."""
        batch = self.read_batch(model, inputs)
        loss = self.loss(batch)
        self._losses.add_rows(loss, batch.rows, inputs["attention_mask"].sum())
        if not model.training:
            self._losses.keep(batch)
        count = batch.rows if num_items_in_batch is None else num_items_in_batch
        mean: Tensor = loss / count
        return mean

    def read_batch(self, model: nn.Module, inputs: Batch) -> PairVectors:
        """Return the vectors of all texts of a batch."""
        rows = len(inputs["score"])
        vectors = self.embed(model, inputs)
        sizes = [rows, rows, len(vectors) - 2 * rows]
        anchors, positives, negatives = torch.split(vectors, sizes)
        return PairVectors(
            anchors=anchors,
            positives=positives,
            negatives=negatives,
            owners=inputs["owners"],
            keys=inputs["keys"],
            scores=inputs["score"],
        )

    def embed(self, model: nn.Module, inputs: Batch) -> Tensor:
        """Return the vector of each text; of a mini-batch at a time, if the recipe says so.

        Then only the vectors stay in memory, and the backward pass computes each mini-batch once
        more: gradient caching, arXiv:2101.06983, by activation checkpointing.
        """
        size, pooling = self.settings.mini_batch, self.settings.pooling
        if size is None or not model.training:
            return embed(model, inputs, pooling)
        names = ("input_ids", "attention_mask")
        parts = zip(*(inputs[name].split(size) for name in names), strict=True)
        vectors = [
            checkpoint(
                embed,
                model,
                dict(zip(names, part, strict=True)),
                pooling,
                use_reentrant=False,
            )
            for part in parts
        ]
        return torch.cat(vectors)

    def count_rows(self, batch: Batch) -> int:
        return len(batch["score"])

    def evaluation_metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        names = ("ndcg_at_10", "mrr_at_10", "top1_accuracy", "spearman")
        found = {f"eval_{name}": sums[name] for name in names if name in sums}
        return {"eval_loss": sums["mean_loss"]} | found

    def dummy_batch(self, shape: BatchShape, device: torch.device) -> Batch:
        batch: Batch = shape.tensors(device)
        del batch["labels"]
        rows = max(1, shape.examples // (2 + self.settings.negatives))
        return batch | {
            "owners": torch.arange(shape.examples - 2 * rows, device=device) % rows,
            "keys": torch.arange(shape.examples, device=device),
            "score": torch.arange(rows, device=device).float(),
        }


class VectorAccumulator(SumAccumulator):
    """Sums over rows; of a validation, also the vectors themselves."""

    SAVED_AS: ClassVar[str] = "VectorSums"
    NAMES: ClassVar[tuple[str, ...]] = ("loss", "tokens", "rows")

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._kept: list[PairVectors] = []

    def add_rows(self, loss: Tensor, rows: int, tokens: Tensor) -> None:
        """Add the summed loss of a batch."""
        self.add_sums(loss, [tokens, torch.full_like(tokens, rows)])

    def keep(self, batch: PairVectors) -> None:
        """Keep the vectors of a batch, to search among all of them."""
        self._kept.append(batch)

    def read(self) -> dict[str, float]:
        """Return the means since the last read."""
        sums = self.read_sums()
        found = {"mean_loss": sums["loss"] / max(sums["rows"], 1)}
        if self._kept:
            found |= compare_all(self._kept)
            self._kept = []
        return self.read_counts(sums) | found


def compare_all(batches: Sequence[PairVectors]) -> dict[str, float]:
    """Return how well each first text finds its second one among those of all batches.

    If the rows have scores, also return the rank correlation of these with the cosines.
    """
    anchors, positives, scores = (
        torch.cat([getattr(batch, name).detach() for batch in batches])
        for name in ("anchors", "positives", "scores")
    )
    keys = [
        pair
        for batch in batches
        for pair in batch.keys[: 2 * batch.rows].view(2, batch.rows).T.tolist()
    ]
    gains = retrieval.to_gains(scores.double())
    found = retrieval.measure(anchors, positives, keys, gains.tolist())
    metrics = {"ndcg_at_10": found.ndcg, "mrr_at_10": found.mrr, "top1_accuracy": found.top1}
    if scores.isnan().any():
        return metrics
    cosines = (anchors * positives).sum(dim=-1, keepdim=True).double()
    likeness = correlation(ranks(cosines.cpu()), ranks(scores[:, None].double().cpu()))
    return metrics | {"spearman": float(likeness)}
