"""Tokenise texts that a model reads as a whole, and collate them with what it learns of each."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from studio.training.data import prompt_answer
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.rows import TrainingRow
from studio.training.data.tokenisation import Collator, Examples

COLUMNS = ("input_ids", "labels", "label")


def tokenise_prompts(
    rows: Sequence[TrainingRow],
    template: ChatTemplate | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> Examples:
    """Tokenise what comes before the last answer of each row, as a prompt; cut it at the end.

    Without a chat template, an encoder reads the text as its tokenizer writes one.

    Raises:
        TrainingError: the chat template cannot render a row.

    """
    found, ids = _read_prompts(rows, template, tokenizer, max_length)
    return Examples(
        # Examples have a label per token; these are not read.
        Dataset.from_dict({"input_ids": ids, "labels": ids}),
        list(rows),
        dropped=0,
        truncated=sum(len(one) > max_length for one in found),
        tokens=sum(map(len, ids)),
        longest=max(map(len, ids), default=0),
        longest_answer=1,
        longest_row=max(map(len, found), default=0),
    )


def _read_prompts(
    rows: Sequence[TrainingRow],
    template: ChatTemplate | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the tokens of each prompt, whole and cut."""
    if template is None:
        texts = [prompt_answer.prompt_text(row.messages[:-1]) for row in rows]
        found = prompt_answer.tokenise_texts(texts, tokenizer)
        return found, [prompt_answer.cut(one, max_length, tokenizer) for one in found]
    texts = [template.render_prompt(row.messages[:-1]) for row in rows]
    found = tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
    return found, [one[:max_length] for one in found]


@dataclass(frozen=True, slots=True)
class TargetCollator(Collator):
    """Makes a batch of texts, with what the model learns of each: `label`."""

    def __call__(self, rows: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        # A dataclass with slots has no `super()` without arguments.
        batch = Collator.__call__(self, rows)
        del batch["labels"]
        return batch | {"label": torch.stack([row["label"] for row in rows])}
