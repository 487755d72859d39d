"""The torch side of preference learning."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from trl.trainer.utils import disable_dropout_in_model

from studio.methods.dpo import METHOD, DPORecipe, Preference
from studio.methods.dpo.losses import Answers, preference_loss
from studio.methods.dpo.pairs import COLUMNS, PairCollator, tokenise
from studio.training.job import TrainingJob
from studio.training.memory.dry_run import BatchShape
from studio.training.models.eval_context import evaluation_mode
from studio.training.monitoring import early_stopping
from studio.training.next_token import LossAccumulator, NextTokenTrainer, build_arguments
from studio.training.precision import matmul_precision

__all__ = ["build", "tokenise"]

_COMPARES_MEANS = ("simpo", "orpo")
"""Losses that compare answers by the mean log-probability of their tokens."""


def build(recipe: DPORecipe, job: TrainingJob) -> "PairTrainer":
    """Build the trainer of a run."""
    # The model must score an answer as its reference does.
    disable_dropout_in_model(job.model)
    args = build_arguments(recipe, job, METHOD.objective)
    trainer = PairTrainer(job, args, early_stopping.callbacks(recipe))
    trainer.recipe = recipe
    return trainer


class PairTrainer(NextTokenTrainer):
    """Compares two answers to the same prompt, and counts on the device.

    A batch holds all chosen answers first, then all rejected ones in the same order.
    """

    collator_type = PairCollator
    recipe: DPORecipe
    _losses: "PairAccumulator"

    def new_accumulator(self) -> "PairAccumulator":
        return PairAccumulator(self.args.device)

    def _set_signature_columns_if_needed(self) -> None:
        """Keep the columns of a pair: upstream removes what the model does not read."""
        self._signature_columns = [*COLUMNS, "reference"]

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
        reference = inputs.pop("reference", None)
        if reference is None and self.recipe.has_reference:
            with torch.no_grad(), self._without_adapter():
                reference = _score(model, inputs).logps
        outputs = _score(model, inputs)
        chosen, rejected = outputs.split(reference)
        losses = preference_loss(chosen, rejected, self.recipe.preference)
        self._losses.add_pairs(
            losses,
            rewards=[_rewards(answers, self.recipe.preference) for answers in (chosen, rejected)],
            logps=[chosen.logps, rejected.logps],
            tokens=inputs["attention_mask"].sum(),
        )
        count = len(losses) if num_items_in_batch is None else num_items_in_batch
        mean: Tensor = losses.sum() / count
        if outputs.aux_loss is not None and self.model.training:
            # A mixture of experts adds a load-balancing loss once per micro-batch.
            share = self.router_aux_loss_coef / self.current_gradient_accumulation_steps
            mean = mean + share * outputs.aux_loss
        return mean

    def evaluation_metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        names = ("preferred_share", "reward_margin", "chosen_logps", "rejected_logps")
        return {"eval_loss": sums["mean_loss"]} | {f"eval_{name}": sums[name] for name in names}

    def score_reference(self, enter: Callable[[str], None]) -> None:
        """Store the reference's log-probabilities with each pair, if the recipe asks for it."""
        if not self.recipe.precomputes_reference:
            return
        enter("scoring the reference")
        size = self.args.per_device_eval_batch_size
        with self._reference_model() as model:
            for rows in (self.train_dataset, self.eval_dataset):
                for start in range(0, len(rows), size):
                    self._score_rows(model, rows[start : start + size])

    def dummy_batch(self, shape: BatchShape, device: torch.device) -> dict[str, Tensor]:
        batch = shape.tensors(device)
        if self.recipe.precomputes_reference:
            batch["reference"] = torch.zeros(shape.examples, device=device)
        return batch

    def _score_rows(self, model: nn.Module, rows: Sequence[dict[str, Tensor]]) -> None:
        batch = {name: part.to(self.args.device) for name, part in self.data_collator(rows).items()}
        scores = _score(model, batch).logps.cpu().view(2, -1).T
        for row, reference in zip(rows, scores, strict=True):
            row["reference"] = reference

    @contextmanager
    def _reference_model(self) -> Iterator[nn.Module]:
        """Give the untrained model, which computes in the precision of the training steps."""
        with (
            matmul_precision.apply_precision(self.mode, self.args.device),
            evaluation_mode(self.model),
            self._without_adapter(),
            self.accelerator.autocast(),
        ):
            yield self.model

    def _without_adapter(self) -> AbstractContextManager[object]:
        if not hasattr(self.model, "disable_adapter"):
            return nullcontext()
        context: AbstractContextManager[object] = self.model.disable_adapter()
        return context


class _Scores:
    """What the model says of each sequence of a batch."""

    def __init__(self, logps: Tensor, tokens: Tensor, aux_loss: Tensor | None) -> None:
        self.logps = logps
        self.tokens = tokens
        self.aux_loss = aux_loss

    def split(self, reference: Tensor | None) -> tuple[Answers, Answers]:
        """Return the chosen and the rejected answers of a batch."""
        given = torch.zeros_like(self.logps) if reference is None else reference
        parts = (values.chunk(2) for values in (self.logps, given, self.tokens))
        chosen, rejected = (
            Answers(logps=logps, reference=other, tokens=tokens)
            for logps, other, tokens in zip(*parts, strict=True)
        )
        return chosen, rejected


def _score(model: nn.Module, inputs: dict[str, Any]) -> _Scores:
    """Score each sequence: the sum over its answer tokens, of shape (sequences,)."""
    outputs = model(**inputs, use_cache=False, fused_lm_head=True)
    tokens = outputs.label_mask.sum(dim=1).clamp(min=1)
    return _Scores(outputs.log_probs.sum(dim=1), tokens, outputs.aux_loss)


def _rewards(answers: Answers, spec: Preference) -> Tensor:
    """Return the implicit reward of each answer: shape (pairs,)."""
    scores = answers.mean_ratio if spec.loss_type in _COMPARES_MEANS else answers.ratio
    return spec.beta * scores.detach()


class PairAccumulator(LossAccumulator):
    """Sums over pairs, kept on the device."""

    SAVED_AS: ClassVar[str] = "PairTally"
    STATE_ATTRIBUTES: ClassVar[tuple[str, ...]] = ("_sums", "_streak", "_nonfinite")

    _NAMES = (
        *("mean_loss", "preferred_share", "reward_margin"),
        *("chosen_logps", "rejected_logps"),
    )
    """What is reported as a mean over pairs, in the order of the sums."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._sums = torch.zeros(len(self._NAMES) + 2, dtype=torch.double, device=device)

    def add_pairs(
        self, losses: Tensor, *, rewards: list[Tensor], logps: list[Tensor], tokens: Tensor
    ) -> None:
        """Add pairs: the rewards and log-probabilities of the chosen answers, then the others."""
        loss = losses.detach().sum()
        is_finite = loss.isfinite()
        chosen, rejected = rewards
        sums = [
            loss,
            (chosen > rejected).sum(),
            (chosen - rejected).sum(),
            *(values.detach().sum() for values in logps),
            tokens,
            torch.ones_like(losses).sum(),
        ]
        self._sums += torch.stack([value.double() for value in sums])
        self._streak = torch.where(is_finite, 0, self._streak + 1)
        self._nonfinite += ~is_finite

    def read(self) -> dict[str, float]:
        """Return the means since the last read, with a single device synchronisation."""
        parts = [self._sums, self._streak[None], self._nonfinite[None]]
        *means, tokens, pairs, streak, nonfinite = torch.cat(
            [part.double() for part in parts]
        ).tolist()
        self._sums.zero_()
        counts = {"tokens": tokens, "nonfinite": streak, "nonfinite_losses": nonfinite}
        return counts | {
            name: value / max(pairs, 1) for name, value in zip(self._NAMES, means, strict=True)
        }
