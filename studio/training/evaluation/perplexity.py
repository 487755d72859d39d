"""Measure the perplexity of validation answers, to detect whether an export changes the model."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from studio.training.data.labels import IGNORE_INDEX
from studio.training.data.prompt_answer_batches import PromptAnswerCollator, decoder_inputs
from studio.training.data.tokenisation import Collator, Examples, row_tensors
from studio.training.models import heads
from studio.training.models.eval_context import evaluation_mode

MAX_LOGITS = 2**26
"""Logits computed at once: 256 MiB in float32, whatever the vocabulary's size."""
MAX_BATCH_ROWS = 16


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Mean loss over the tokens of answers."""

    loss: float
    tokens: int

    @property
    def perplexity(self) -> float:
        try:
            return math.exp(self.loss)
        except OverflowError:
            return math.inf


def measure(
    model: PreTrainedModel,
    examples: Examples,
    pad_token_id: int,
    report_share: Callable[[float], None],
    collator: Collator | None = None,
) -> Perplexity:
    """Evaluate every example once. A model that computes NaN has a perplexity of NaN.

    `collator` makes batches of examples with images.
    """
    rows = row_tensors(examples.data)
    losses = list(iter_losses(model, rows, pad_token_id, report_share, collator))
    tokens = sum(tokens for _loss, tokens in losses)
    return Perplexity(sum(loss for loss, _tokens in losses) / max(tokens, 1), tokens)


def iter_losses(
    model: PreTrainedModel,
    rows: Sequence[dict[str, Tensor]],
    pad_token_id: int,
    report_share: Callable[[float], None] = lambda _share: None,
    collator: Collator | None = None,
) -> Iterator[tuple[float, int]]:
    """Yield the loss of each example, in nats summed over its trained tokens, and their number.

    `collator` makes batches of examples with images.
    """
    reads_first = heads.is_encoder_decoder(model.config)
    collate = collator or (PromptAnswerCollator if reads_first else Collator)(pad_token_id)
    longest = max((len(row["labels"]) for row in rows), default=1)
    vocabulary = model.config.get_text_config().vocab_size
    size = max(1, min(MAX_BATCH_ROWS, MAX_LOGITS // (longest * vocabulary)))
    for start in range(0, len(rows), size):
        batch = collate(rows[start : start + size])
        with evaluation_mode(model):
            yield from _batch_losses(model, batch, reads_first=reads_first)
        report_share(min(start + size, len(rows)) / len(rows))


def _batch_losses(
    model: PreTrainedModel, batch: dict[str, Tensor], *, reads_first: bool
) -> list[tuple[float, int]]:
    batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
    labels = batch.pop("labels")
    if reads_first:
        batch["decoder_input_ids"] = decoder_inputs(model, labels)
    logits = model(**batch, use_cache=False).logits
    if not reads_first:
        labels, logits = labels[:, 1:], logits[:, :-1]
    return [
        (_sum_loss(row_logits, row_labels), int((row_labels != IGNORE_INDEX).sum()))
        for row_logits, row_labels in zip(logits, labels, strict=True)
    ]


def _sum_loss(logits: Tensor, labels: Tensor) -> float:
    is_trained = labels != IGNORE_INDEX
    loss = torch.nn.functional.cross_entropy(
        logits[is_trained].float(), labels[is_trained], reduction="sum"
    )
    return loss.item()
