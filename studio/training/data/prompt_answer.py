"""Read rows as a prompt and its answer, for models of which one half reads and the other writes.

The prompt is what comes before the last answer, as plain text: no chat template marks its turns.
Both parts end as the model's own tokenizer ends a text. Needs no torch.
"""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from studio.intake.row_formats.image_marks import mark_images
from studio.intake.row_formats.tasks import reference_text
from studio.training.data.rows import Message, TrainingRow, is_trained_on


def prompt_text(turns: Sequence[Message]) -> str:
    """Return turns as the text that a model reads: their contents, each on a line of its own."""
    return "\n".join(filter(None, map(mark_images, turns)))


def split_row(row: TrainingRow) -> tuple[str, str]:
    """Return the prompt of a row and its last answer; both are empty if it has no answer.

    The answer of a task is the one that graders may read.
    """
    if row.is_task:
        return prompt_text(row.messages), reference_text(row.item)
    last = max((i for i, turn in enumerate(row.messages) if is_trained_on(turn)), default=0)
    if not last:
        return "", ""
    return prompt_text(row.messages[:last]), str(row.messages[last]["content"])


def prompt_ids(text: str, tokenizer: PreTrainedTokenizerBase, max_length: int | None) -> list[int]:
    """Tokenise a prompt as in training; None truncates nothing."""
    (ids,) = tokenise_texts([text], tokenizer)
    return ids if max_length is None else cut(ids, max_length, tokenizer)


def cut(ids: list[int], max_length: int, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Truncate a text, but keep the token that ends it, and the code of its language behind it."""
    if len(ids) <= max_length:
        return ids
    kept = 2 if ids[-2] == tokenizer.eos_token_id and max_length > 1 else 1
    return [*ids[: max_length - kept], *ids[-kept:]]


def cut_texts(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> list[list[int]]:
    """Tokenise texts, cut as their tokenizer cuts them: its own tokens stay."""
    if not texts:
        return []
    found: Any = tokenizer(list(texts), truncation=True, max_length=max_length)
    ids: list[list[int]] = found["input_ids"]
    return ids


def tokenise_texts(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, *, is_answer: bool = False
) -> list[list[int]]:
    """Tokenise texts as upstream does. An answer has an end in any case, or it would never stop."""
    if not texts:
        return []
    written: Any = tokenizer(text_target=list(texts)) if is_answer else tokenizer(list(texts))
    found: list[list[int]] = written["input_ids"]
    end = tokenizer.eos_token_id
    return [ids if not is_answer or end in ids[-2:] else [*ids, end] for ids in found]
