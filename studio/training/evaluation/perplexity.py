"""Measure the perplexity of validation answers, to detect whether an export changes the model."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
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
) -> Perplexity:
    """Evaluate every example once. A model that computes NaN has a perplexity of NaN."""
    reads_first = heads.is_encoder_decoder(model.config)
    make_collator = PromptAnswerCollator if reads_first else Collator
    rows, collator = row_tensors(examples.data), make_collator(pad_token_id)
    longest = max(len(row["labels"]) for row in rows)
    size = max(
        1, min(MAX_BATCH_ROWS, MAX_LOGITS // (longest * model.config.get_text_config().vocab_size))
    )
    loss, tokens = 0.0, 0
    with evaluation_mode(model):
        for start in range(0, len(rows), size):
            batch = {
                name: tensor.to(model.device)
                for name, tensor in collator(rows[start : start + size]).items()
            }
            labels = batch.pop("labels")
            if reads_first:
                batch["decoder_input_ids"] = decoder_inputs(model, labels)
            logits = model(**batch, use_cache=False).logits
            if not reads_first:
                labels, logits = labels[:, 1:], logits[:, :-1]
            is_answer = labels != IGNORE_INDEX
            loss += torch.nn.functional.cross_entropy(
                logits[is_answer].float(), labels[is_answer], reduction="sum"
            ).item()
            tokens += int(is_answer.sum())
            report_share(min(start + size, len(rows)) / len(rows))
    return Perplexity(loss / max(tokens, 1), tokens)
