"""How likely a model finds the worse answers of preferences."""

from collections.abc import Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from studio.training.data import prompt_answer_batches, tokenisation
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.rows import TrainingRow, rejected_answer
from studio.training.evaluation import perplexity
from studio.training.models import heads


def measure_rejected(
    rows: Sequence[TrainingRow],
    template: ChatTemplate | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    model: PreTrainedModel,
) -> dict[int, float]:
    """Return the loss of each worse answer in nats, by the number of its row.

    An answer of which truncation leaves nothing has none.
    """
    worse = [rejected_answer(row) for row in rows if row.rejected]
    if not worse:
        return {}
    reads_first = heads.is_encoder_decoder(model.config)
    tokenise = prompt_answer_batches.tokenise if reads_first else tokenisation.tokenise
    examples = tokenise(worse, template, tokenizer, max_length)
    tensors = tokenisation.row_tensors(examples.data)
    losses = perplexity.iter_losses(model, tensors, tokenizer.pad_token_id)
    return {row.number: loss for row, (loss, _) in zip(examples.rows, losses, strict=True)}
