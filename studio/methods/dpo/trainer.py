"""The torch side of preference learning."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from trl.trainer.utils import disable_dropout_in_model

from studio.methods.dpo import METHOD, DPORecipe, Preference
from studio.methods.dpo.losses import Answers, preference_loss
from studio.methods.dpo.pairs import COLUMNS, PairCollator, tokenise
from studio.training.accumulators import SumAccumulator
from studio.training.job import TrainingJob
from studio.training.memory.dry_run import BatchShape
from studio.training.monitoring import early_stopping
from studio.training.reference_trainer import (
    Batch,
    ReferenceTrainer,
    SequenceScores,
    score_sequences,
)
from studio.training.run_trainer import build_arguments

__all__ = ["build", "tokenise"]

_COMPARES_MEANS = ("simpo", "orpo")
"""Losses that compare answers by the mean log-probability of their tokens."""


def build(recipe: DPORecipe, job: TrainingJob) -> "PairTrainer":
    """Build the trainer of a run."""
    # The model must score an answer as its reference does.
    disable_dropout_in_model(job.model)
    args = build_arguments(recipe, job, METHOD.objective)
    kind = WeightedPairTrainer if recipe.preference.confidence_weighted else PairTrainer
    trainer = kind(job, args, early_stopping.callbacks(recipe))
    trainer.recipe = recipe
    trainer.precomputes_reference = recipe.precomputes_reference
    return trainer


class PairTrainer(ReferenceTrainer):
    """Compares two answers to the same prompt, and counts on the device.

    A batch holds all chosen answers first, then all rejected ones in the same order.
    """

    collator_type = PairCollator
    columns = (*COLUMNS, "reference")
    recipe: DPORecipe
    _losses: "PairAccumulator"

    def new_accumulator(self) -> "PairAccumulator":
        return PairAccumulator(self.args.device)

    def reference_scores(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"reference": self.score_answers(model, batch).logps.view(2, -1).T}

    @property
    def has_reference(self) -> bool:
        return self.recipe.has_reference

    def _get_num_items_in_batch(self, batches: Sequence[dict[str, Tensor]], device: object) -> int:
        """Return the number of pairs in an accumulated batch: the loss is their mean."""
        del device
        return sum(len(batch["labels"]) // 2 for batch in batches)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,  # noqa: FBT001, FBT002, ARG002 -- upstream's signature
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the mean loss over the pairs of the whole accumulated batch."""
        reference = inputs.get("reference")
        if reference is None and self.has_reference:
            with torch.no_grad(), self.without_adapter():
                reference = self.score_answers(model, inputs).logps
        outputs = self.score_answers(model, inputs)
        chosen, rejected = _split(outputs, reference)
        losses = preference_loss(chosen, rejected, self.recipe.preference)
        self._losses.add_pairs(
            losses,
            rewards=[_rewards(answers, self.recipe.preference) for answers in (chosen, rejected)],
            logps=[chosen.logps, rejected.logps],
            tokens=inputs["attention_mask"].sum(),
        )
        count = len(losses) if num_items_in_batch is None else num_items_in_batch
        mean: Tensor = losses.sum() / count
        return self.add_aux_loss(mean, outputs.aux_loss)

    def score_answers(self, model: nn.Module, batch: Batch) -> SequenceScores:
        weight = self.recipe.preference.tail_weight
        weigh = partial(length_weights, tail_weight=weight) if weight != 1 else None
        inputs = {name: batch[name] for name in batch if name != "reference"}
        return score_sequences(model, inputs, weigh)

    def compared_rewards(self, scores: SequenceScores, reference: Tensor | None) -> Tensor:
        chosen, rejected = (
            _rewards(answers, self.recipe.preference) for answers in _split(scores, reference)
        )
        return chosen - rejected

    def evaluation_metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        names = ("preferred_share", "reward_margin", "chosen_logps", "rejected_logps")
        return {"eval_loss": sums["mean_loss"]} | {f"eval_{name}": sums[name] for name in names}

    def dummy_batch(self, shape: BatchShape, device: torch.device) -> dict[str, Tensor]:
        batch = shape.tensors(device)
        if self.precomputes_reference:
            batch["reference"] = torch.zeros(shape.examples, device=device)
        return batch


class WeightedPairTrainer(PairTrainer):
    """Weighs each pair by how likely the model itself would write its answers."""

    head_outputs = (*PairTrainer.head_outputs, "log_sum_sq_probs")


def length_weights(mask: Tensor, tail_weight: float) -> Tensor:
    """Return the weights of answer tokens: those beyond the other answer's length count less.

    LD-DPO, arXiv:2409.06411. `mask` has the chosen answers first: shape (2 * pairs, tokens).
    """
    lengths = mask.sum(dim=1)
    shared = torch.minimum(*lengths.chunk(2)).repeat(2)
    is_tail = mask.cumsum(dim=1) > shared[:, None]
    return torch.where(is_tail, tail_weight, 1.0) * mask


def _split(scores: SequenceScores, reference: Tensor | None) -> tuple[Answers, Answers]:
    """Return the chosen and the rejected answers of a batch."""
    given = torch.zeros_like(scores.logps) if reference is None else reference
    parts = (values.chunk(2) for values in (scores.logps, given, scores.tokens))
    confidence = (None, None) if scores.confidence is None else scores.confidence.chunk(2)
    chosen, rejected = (
        Answers(logps=logps, reference=other, tokens=tokens, confidence=sure)
        for logps, other, tokens, sure in zip(*parts, confidence, strict=True)
    )
    return chosen, rejected


def _rewards(answers: Answers, spec: Preference) -> Tensor:
    """Return the implicit reward of each answer: shape (pairs,)."""
    scores = answers.mean_ratio if spec.loss_type in _COMPARES_MEANS else answers.ratio
    return spec.beta * scores.detach()


class PairAccumulator(SumAccumulator):
    """Sums over pairs."""

    SAVED_AS: ClassVar[str] = "PairTally"
    _MEANS = ("mean_loss", "preferred_share", "reward_margin", "chosen_logps", "rejected_logps")
    """What is reported as a mean over pairs."""
    NAMES: ClassVar[tuple[str, ...]] = (*_MEANS, "tokens", "pairs")

    def add_pairs(
        self, losses: Tensor, *, rewards: list[Tensor], logps: list[Tensor], tokens: Tensor
    ) -> None:
        """Add pairs: the rewards and log-probabilities of the chosen answers, then the others."""
        chosen, rejected = rewards
        self.add_sums(
            losses.sum(),
            [
                # An untrained model prefers neither: a tie is half of a preference.
                (chosen > rejected).sum() + 0.5 * (chosen == rejected).sum(),
                (chosen - rejected).sum(),
                *(values.sum() for values in logps),
                tokens,
                torch.ones_like(losses).sum(),
            ],
        )

    def read(self) -> dict[str, float]:
        """Return the means since the last read."""
        sums = self.read_sums()
        pairs = max(sums["pairs"], 1)
        return self.read_counts(sums) | {name: sums[name] / pairs for name in self._MEANS}
