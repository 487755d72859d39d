"""Prompts with images: the tokens that stand for these. Needs no torch."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from studio.training.data.image_messages import count_repeats, repeat
from studio.training.data.rows import TrainingRow
from studio.training.models import tokenizers


def repeat_images(
    ids: Sequence[int], row: TrainingRow, tokenizer: PreTrainedTokenizerBase
) -> list[int]:
    """Repeat the token that stands for each image of a row as often as its size asks for.

    Raises:
        TrainingError: the row has not as many images as its tokens have places for them, or the
            model cannot read one.

    """
    tokens = tokenizers.image_tokens(tokenizer)
    if tokens is None:
        return list(ids)
    return repeat(ids, count_repeats(ids, row.messages, tokens, row.location))
