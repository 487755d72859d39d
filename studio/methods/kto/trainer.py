"""The torch side of learning from ratings."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers.trainer_utils import EvalLoopOutput
from trl.trainer.utils import disable_dropout_in_model

from studio.errors import TrainingError
from studio.methods.kto import METHOD, KTORecipe, Rating
from studio.methods.kto.losses import LOSSES, RatedAnswers, balanced_weights
from studio.methods.kto.ratings import COLUMNS, SCORES, RatingCollator, tokenise
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


def build(recipe: KTORecipe, job: TrainingJob) -> "RatingTrainer":
    """Build the trainer of a run."""
    # The model must score an answer as its reference does.
    disable_dropout_in_model(job.model)
    args = build_arguments(recipe, job, METHOD.objective)
    trainer = RatingTrainer(job, args, early_stopping.callbacks(recipe))
    trainer.recipe = recipe
    trainer.precomputes_reference = recipe.precomputes_reference
    return trainer


class RatingTrainer(ReferenceTrainer):
    """Raises answers that are rated good, and lowers bad ones.

    The divergence from the reference is estimated from all rows of an accumulated batch, so that
    the loss does not depend on how they are divided; upstream estimates it for each part.
    """

    collator_type = RatingCollator
    columns = (*COLUMNS, *SCORES)
    recipe: KTORecipe
    weights: tuple[float, float] = 1.0, 1.0
    """Of good and bad answers."""
    _losses: "RatingAccumulator"
    _divergence: Tensor | float = 0.0
    """Mean log-ratio of answers to other prompts, in nats, at least 0."""
    _baseline: Tensor | float = 0.0

    def new_accumulator(self) -> "RatingAccumulator":
        return RatingAccumulator(self.args.device)

    def score_reference(self, enter: Callable[[str], None]) -> None:
        """Weigh the ratings before the reference scores their answers.

        Raises:
            TrainingError: all answers have the same rating.

        """
        ratings = [bool(row["is_good"]) for row in self.train_dataset]
        self.weights = _weights(self.recipe.rating, ratings)
        super().score_reference(enter)

    def reference_scores(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        scores = {"reference": self.score_answers(model, batch).logps}
        if self.recipe.rating.has_divergence:
            scores["other_reference"] = score_sequences(model, batch["others"]).logps
        return scores

    def get_batch_samples(self, *args: object) -> tuple[list[Batch], Tensor | int | None]:
        """Measure what the loss of a whole accumulated batch depends on, before its first part."""
        batches, count = super().get_batch_samples(*args)
        self._divergence = self._measure_divergence(batches)
        self._baseline = self._losses.mean_reward()
        return batches, count

    def evaluation_loop(self, *args: object, **kwargs: object) -> EvalLoopOutput:
        self._divergence = self._measure_divergence(self._validation_batches())
        self._baseline = self._losses.mean_reward()
        return super().evaluation_loop(*args, **kwargs)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,  # noqa: FBT001, FBT002, ARG002 -- upstream's signature
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the mean loss over the answers of the whole accumulated batch."""
        reference = inputs.get("reference")
        if reference is None:
            with torch.no_grad(), self.without_adapter():
                reference = self.score_answers(model, inputs).logps
        scores = self.score_answers(model, inputs)
        spec, (good_weight, bad_weight) = self.recipe.rating, self.weights
        answers = RatedAnswers(
            rewards=self.compared_rewards(scores, reference),
            is_good=inputs["is_good"].to(scores.logps.dtype),
            divergence=spec.beta * self._divergence,
            baseline=self._baseline,
        )
        weights = answers.is_good * good_weight + (1 - answers.is_good) * bad_weight
        losses = weights * LOSSES[spec.loss_type](answers)
        self._losses.add_answers(
            losses, answers, self._divergence, tokens=inputs["attention_mask"].sum()
        )
        count = len(losses) if num_items_in_batch is None else num_items_in_batch
        return self.add_aux_loss(losses.sum() / count, scores.aux_loss)

    def score_answers(self, model: nn.Module, batch: Batch) -> SequenceScores:
        return score_sequences(model, _answers(batch))

    def compared_rewards(self, scores: SequenceScores, reference: Tensor | None) -> Tensor:
        given = 0 if reference is None else reference
        return self.recipe.rating.beta * (scores.logps - given)

    def evaluation_metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        names = ("rating_margin", "good_reward", "bad_reward")
        return {"eval_loss": sums["mean_loss"]} | {f"eval_{name}": sums[name] for name in names}

    def dummy_batch(self, shape: BatchShape, device: torch.device) -> Batch:
        batch = shape.tensors(device)
        batch["is_good"] = torch.ones(shape.examples, dtype=torch.long, device=device)
        if self.precomputes_reference:
            batch["reference"] = torch.zeros(shape.examples, device=device)
        return batch

    def _get_num_items_in_batch(self, batches: Sequence[Batch], device: object) -> int:
        """Return the number of answers in an accumulated batch: the loss is their mean."""
        del device
        return sum(len(batch["labels"]) for batch in batches)

    def _validation_batches(self) -> Iterator[Batch]:
        size = self.args.per_device_eval_batch_size
        for start in range(0, len(self.eval_dataset), size):
            yield self.data_collator(self.eval_dataset[start : start + size])

    def _measure_divergence(self, batches: Iterable[Batch]) -> Tensor | float:
        """Return the mean log-ratio of answers to other prompts, at least 0."""
        if not self.recipe.rating.has_divergence:
            return 0.0
        with torch.no_grad(), self.accelerator.autocast():
            ratios = [self._score_others(self._prepare_inputs(batch)) for batch in batches]
        return torch.cat(ratios).mean().clamp(min=0)

    def _score_others(self, batch: Batch) -> Tensor:
        reference = batch.get("other_reference")
        if reference is None:
            with self.without_adapter():
                reference = score_sequences(self.model, batch["others"]).logps
        return score_sequences(self.model, batch["others"]).logps - reference


def _answers(batch: Batch) -> Batch:
    """Return the part of a batch that a model reads."""
    return {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}


def _weights(spec: Rating, ratings: Sequence[bool]) -> tuple[float, float]:
    """Return the weights of good and bad answers."""
    good = sum(ratings)
    if not good:
        raise TrainingError(
            "bad_row",
            f"All {len(ratings):,} answers of the training data are rated bad.",
            hint="Add good answers: the model learns from the difference.",
        )
    if good == len(ratings):
        raise TrainingError(
            "bad_row",
            f"All {good:,} answers of the training data are rated good.",
            hint="Add bad answers, or choose Learn from answers: it needs none.",
        )
    if spec.good_weight is not None and spec.bad_weight is not None:
        return spec.good_weight, spec.bad_weight
    return balanced_weights(good, len(ratings) - good)


class RatingAccumulator(SumAccumulator):
    """Sums over rated answers, and the rewards of all steps so far."""

    SAVED_AS: ClassVar[str] = "RatingSums"
    STATE_ATTRIBUTES: ClassVar[tuple[str, ...]] = (*SumAccumulator.STATE_ATTRIBUTES, "_all_rewards")
    NAMES: ClassVar[tuple[str, ...]] = (
        *("loss", "good_reward", "bad_reward", "divergence"),
        *("tokens", "good", "answers"),
    )

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._all_rewards = torch.zeros(2, dtype=torch.double, device=device)
        """Their sum and their number, for BCO."""

    def add_answers(
        self, losses: Tensor, answers: RatedAnswers, divergence: Tensor | float, tokens: Tensor
    ) -> None:
        """Add a batch of answers."""
        rewards, is_good = answers.rewards.detach(), answers.is_good
        count = torch.ones_like(losses).sum()
        self.add_sums(
            losses.sum(),
            [
                (rewards * is_good).sum(),
                (rewards * (1 - is_good)).sum(),
                divergence * count,
                tokens,
                is_good.sum(),
                count,
            ],
        )
        self._all_rewards += torch.stack([rewards.double().sum(), count.double()])

    def mean_reward(self) -> Tensor:
        """Return the mean reward of all steps so far."""
        total, count = self._all_rewards
        mean: Tensor = total / count.clamp(min=1)
        return mean.float()

    def read(self) -> dict[str, float]:
        """Return the means since the last read; without answers of a kind, its reward is 0."""
        sums = self.read_sums()
        answers = max(sums["answers"], 1)
        good = sums["good_reward"] / max(sums["good"], 1)
        bad = sums["bad_reward"] / max(sums["answers"] - sums["good"], 1)
        return self.read_counts(sums) | {
            "mean_loss": sums["loss"] / answers,
            "divergence": sums["divergence"] / answers,
            "good_reward": good,
            "bad_reward": bad,
            "rating_margin": good - bad,
        }
