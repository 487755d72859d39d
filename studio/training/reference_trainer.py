"""A trainer whose loss compares the model with its reference: the model before training."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from studio.training.models.eval_context import evaluation_mode
from studio.training.next_token import NextTokenTrainer
from studio.training.precision import matmul_precision

Batch = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SequenceScores:
    """What a model says of each sequence of a batch."""

    logps: Tensor
    """Log-probability of the answer tokens, in nats: shape (sequences,)."""
    tokens: Tensor
    """Number of answer tokens, at least 1: shape (sequences,)."""
    aux_loss: Tensor | None
    """The load-balancing loss of a mixture of experts."""
    confidence: Tensor | None
    """Mean over the answer tokens of log p - log(sum of p squared), p being the probabilities of
    the next token: shape (sequences,); None unless the head computes it."""


WeighTokens = Callable[[Tensor], Tensor]
"""Takes the mask of answer tokens, and returns their weights: shape (sequences, tokens)."""


def score_sequences(
    model: nn.Module, inputs: Batch, weigh: WeighTokens | None = None
) -> SequenceScores:
    """Score the answer of each sequence."""
    outputs = model(**inputs, use_cache=False, fused_lm_head=True)
    mask, log_probs = outputs.label_mask, outputs.log_probs
    tokens = mask.sum(dim=1).clamp(min=1)
    confidence = None
    if (log_sum_squares := getattr(outputs, "log_sum_sq_probs", None)) is not None:
        confidence = ((log_probs - log_sum_squares) * mask).detach().sum(dim=1) / tokens
    weighted = log_probs if weigh is None else log_probs * weigh(mask)
    return SequenceScores(weighted.sum(dim=1), tokens, outputs.aux_loss, confidence)


class ReferenceTrainer(NextTokenTrainer):
    """Scores answers with the reference at every step, or once before training.

    The reference is the model without its adapter, or the model of a full fine-tune before its
    first step.
    """

    precomputes_reference = False
    columns: tuple[str, ...]
    """The columns of the data that a batch is made of."""

    def reference_scores(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return what the reference says of each row: columns of shape (rows, ...)."""
        raise NotImplementedError

    def score_reference(self, enter: Callable[[str], None]) -> None:
        """Store the reference's scores with each row, if the recipe asks for it."""
        if not self.precomputes_reference:
            return
        enter("scoring the reference")
        size = self.args.per_device_eval_batch_size
        with self._reference_model() as model:
            for rows in (self.train_dataset, self.eval_dataset):
                for start in range(0, len(rows), size):
                    self._store_scores(model, rows[start : start + size])

    def without_adapter(self) -> AbstractContextManager[object]:
        """Make the model its own reference."""
        if not hasattr(self.model, "disable_adapter"):
            return nullcontext()
        context: AbstractContextManager[object] = self.model.disable_adapter()
        return context

    def _set_signature_columns_if_needed(self) -> None:
        """Keep all columns: upstream removes what the model does not read."""
        self._signature_columns = list(self.columns)

    def _store_scores(self, model: nn.Module, rows: Sequence[dict[str, Tensor]]) -> None:
        batch = self._prepare_inputs(self.data_collator(rows))
        for name, scores in self.reference_scores(model, batch).items():
            for row, score in zip(rows, scores.cpu(), strict=True):
                row[name] = score

    @contextmanager
    def _reference_model(self) -> Iterator[nn.Module]:
        """Give the untrained model, which computes in the precision of the training steps.

        An adapter that started as a part of the base model, or as the result of another run,
        belongs to the untrained model.
        """
        with (
            matmul_precision.apply_precision(self.mode, self.args.device),
            evaluation_mode(self.model),
            nullcontext() if self.changes_start else self.without_adapter(),
            self.accelerator.autocast(),
        ):
            yield self.model
