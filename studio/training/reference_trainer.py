"""A trainer whose loss compares the model with its reference: the model before training."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers.trainer_utils import EvalLoopOutput

from studio.metrics import REWARD_ROUNDING
from studio.training.models.eval_context import evaluation_mode
from studio.training.next_token import NextTokenTrainer
from studio.training.precision import matmul_precision
from studio.training.precision.float32_forward import float32_forward

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


PROBE_ROWS = 8
"""Validation rows from which the rounding error of rewards is measured."""

_ROUNDING = ("bfloat16", "float16")
"""Compute formats whose rounding error is worth measuring."""

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


@dataclass(frozen=True, slots=True)
class _Probe:
    """Validation rows whose rewards are computed in float32, too."""

    batch: Batch
    reference: Tensor | None
    """What the reference says of their answers in float32; None without a reference."""


class ReferenceTrainer(NextTokenTrainer):
    """Scores answers with the reference at every step, or once before training.

    The reference is the model without its adapter, or the model of a full fine-tune before its
    first step.
    """

    precomputes_reference = False
    _probe: "_Probe | None" = None
    columns: tuple[str, ...]
    """The columns of the data that a batch is made of."""

    def reference_scores(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return what the reference says of each row: columns of shape (rows, ...)."""
        raise NotImplementedError

    def score_answers(self, model: nn.Module, batch: Batch) -> SequenceScores:
        """Return what a model says of the answers of a batch."""
        raise NotImplementedError

    def compared_rewards(self, scores: SequenceScores, reference: Tensor | None) -> Tensor:
        """Return what the loss looks at, in nats: shape (rows,)."""
        raise NotImplementedError

    @property
    def has_reference(self) -> bool:
        return True

    def score_reference(self, enter: Callable[[str], None]) -> None:
        """Store the reference's scores with each row, if the recipe asks for it."""
        if self.precomputes_reference:
            enter("scoring the reference")
            size = self.args.per_device_eval_batch_size
            with self._reference_model() as model:
                for rows in (self.train_dataset, self.eval_dataset):
                    for start in range(0, len(rows), size):
                        self._store_scores(model, rows[start : start + size])
        if self.mode.compute in _ROUNDING and len(self.eval_dataset):
            self._probe = self._make_probe()

    def evaluation_loop(self, *args: object, **kwargs: object) -> EvalLoopOutput:
        output = super().evaluation_loop(*args, **kwargs)
        if self._probe is not None:
            output.metrics[REWARD_ROUNDING] = self._measure_rounding(self._probe)
        return output

    def _make_probe(self) -> "_Probe":
        """Score a few validation rows with the reference, in float32."""
        batch = self._prepare_inputs(self.data_collator(self.eval_dataset[:PROBE_ROWS]))
        if not self.has_reference:
            return _Probe(batch, None)
        with self._reference_model() as model, float32_forward(model, self.args.device):
            return _Probe(batch, self.score_answers(model, batch).logps)

    def _measure_rounding(self, probe: "_Probe") -> float:
        """Return by how much computing in float32 would change the rewards, in nats on average."""
        batch, reference = probe.batch, probe.batch.get("reference")
        with evaluation_mode(self.model):
            if reference is None and self.has_reference:
                with self.accelerator.autocast(), self.without_adapter():
                    reference = self.score_answers(self.model, batch).logps
            with self.accelerator.autocast():
                rewards = self.compared_rewards(self.score_answers(self.model, batch), reference)
            with float32_forward(self.model, self.args.device):
                exact = self.compared_rewards(
                    self.score_answers(self.model, batch), probe.reference
                )
        return float((rewards - exact).abs().mean())

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
